package outbox

import (
	"sync"
	"time"
)

// takeoverLoop counts publishing connections that are lost soon after they came up. Many such
// losses in a minute suggest that another cluster of the same name uses the same client ids: the
// two take over each other's connections. The cause of a loss is not known. The zero value is ready
// for use. All methods are safe for concurrent use.
type takeoverLoop struct {
	mu       sync.Mutex
	losses   []time.Time // within loopWindow
	detected time.Time   // when a loop was logged last; zero if never
}

const (
	loopWindow          = time.Minute
	loopLosses          = 4 // losses within loopWindow that make a loop
	loopWarningInterval = 10 * time.Minute
	// maxLoopUptime is the longest uptime of a connection whose loss counts. Outbox.lost checks it.
	maxLoopUptime = 5 * time.Second
)

// recordLoss records a loss, when the next connection is up. It returns true if a loop is to be
// logged: at most once in each loopWarningInterval.
func (l *takeoverLoop) recordLoss(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losses = append(l.losses, now)
	for len(l.losses) > 0 && now.Sub(l.losses[0]) > loopWindow {
		l.losses = l.losses[1:]
	}
	if len(l.losses) < loopLosses || now.Sub(l.detected) < loopWarningInterval {
		return false
	}
	l.detected = now
	return true
}

// detectedRecently reports whether a loop was logged within the last loopWarningInterval.
func (l *takeoverLoop) detectedRecently(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.detected.IsZero() && now.Sub(l.detected) < loopWarningInterval
}
