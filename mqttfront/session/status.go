package session

import (
	"sync"
	"sync/atomic"
	"time"
)

// status has the state of a session's connection, and the time of the last message that the broker
// sent on it. All methods are safe for concurrent use.
type status struct {
	blocked       func() bool // whether this node waits with what came; nil: never
	probeInterval time.Duration
	created       time.Time
	lastMessage   atomic.Int64 // nanoseconds since created

	mu sync.Mutex
	// when the broker acknowledged the subscriptions of the last connection, or when the status was
	// created
	subscribedAt time.Time
	up           bool
	changed      time.Time     // the time of the last change of up
	place        int           // of the broker of the last connection among the addresses
	moved        chan struct{} // closed and replaced when place changes
	text         string        // the state of the connection, for logs and health checks
}

func newStatus(probeInterval time.Duration) *status {
	now := time.Now()
	return &status{
		probeInterval: probeInterval, created: now, subscribedAt: now, changed: now,
		text: "not connected yet", moved: make(chan struct{}),
	}
}

// set records the state of the connection, and returns the previous value of up. set(true, …)
// counts as a message of the broker.
func (s *status) set(up bool, text string) (wasUp bool) {
	if up {
		s.recordMessage()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	wasUp = s.up
	if up != s.up {
		s.changed = time.Now()
	}
	s.up, s.text = up, text
	return wasUp
}

// setSubscribed records that the broker has acknowledged the subscriptions.
func (s *status) setSubscribed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribedAt = time.Now()
}

// setPlace records to which of the addresses the last connection goes.
func (s *status) setPlace(place int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if place != s.place {
		s.place = place
		close(s.moved)
		s.moved = make(chan struct{})
	}
}

// placeAndMoved returns the place of the broker, and a channel that is closed when it changes.
func (s *status) placeAndMoved() (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place, s.moved
}

// subscribed returns when setSubscribed was called last.
func (s *status) subscribed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscribedAt
}

// recordMessage records that the broker sent a message.
func (s *status) recordMessage() { s.lastMessage.Store(int64(time.Since(s.created))) }

// upSince reports whether the session has been up without interruption since a moment.
func (s *status) upSince(moment time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up && !s.changed.After(moment)
}

// state returns whether the session is up, and its text.
func (s *status) state() (up bool, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up, s.text
}

// downFor returns how long the session has been down. It is 0 while the session is up.
func (s *status) downFor(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up {
		return 0
	}
	return now.Sub(s.changed)
}

// silence returns how long the session has been down or, while it is up, the time since the
// broker's last message. What comes before the session is up counts, too: a queue that is long
// comes before the SUBACK. While the session is up, silence is 0 if this node waits with what came
// (blocked). It is also 0 for up to 1.5 probe intervals: probes return only once per interval.
func (s *status) silence(now time.Time) time.Duration {
	quiet := now.Sub(s.created) - time.Duration(s.lastMessage.Load())
	if down := s.downFor(now); down > 0 {
		return min(down, quiet)
	}
	if s.blocked != nil && s.blocked() || quiet <= s.probeInterval+s.probeInterval/2 {
		return 0
	}
	return quiet
}
