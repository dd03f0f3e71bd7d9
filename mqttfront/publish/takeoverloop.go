package publish

import (
	"sync"
	"time"
)

// takeoverLoop detects that another client takes over the publishing connections again and again: another cluster of the same name at the
// same broker. The zero value is ready for use. All methods are safe for concurrent use.
type takeoverLoop struct {
	mu       sync.Mutex
	losses   []time.Time // in the window
	detected time.Time   // last time
}

const (
	loopWindow          = time.Minute
	loopLosses          = 4 // in the window, while the broker is there
	loopWarningInterval = 10 * time.Minute
	// loopConnection is how long a connection lives at most that counts.
	loopConnection = 5 * time.Second
)

// lost notes the loss of a publishing connection, and reports whether to log a loop: it does so once for each loopWarningInterval.
func (l *takeoverLoop) lost(now time.Time) bool {
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

// lately reports whether a loop was detected within loopWarningInterval.
func (l *takeoverLoop) lately(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.detected.IsZero() && now.Sub(l.detected) < loopWarningInterval
}
