package ingest

import (
	"sync"
	"sync/atomic"
	"time"
)

// status tells whether a session is up, and when the broker last sent a message by it. All methods are safe for concurrent use.
type status struct {
	blocked       func() bool // reports whether this node has stopped reading, because Receive blocks
	probeInterval time.Duration
	created       time.Time
	lastMessage   atomic.Int64 // nanoseconds since created

	mu           sync.Mutex
	subscribedAt time.Time // when the broker acknowledged the subscriptions of the last connection, or when the status was created
	up           bool
	changed      time.Time // when up changed last
	text         string    // what the session is doing, for people
}

func newStatus(blocked func() bool, probeInterval time.Duration) *status {
	now := time.Now()
	return &status{blocked: blocked, probeInterval: probeInterval, created: now, subscribedAt: now, changed: now, text: "not connected yet"}
}

// set records whether the session is up, and returns whether it was. A session that comes up counts as heard from.
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

// recordMessage records that the broker sent a message.
func (s *status) recordMessage() { s.lastMessage.Store(int64(time.Since(s.created))) }

// upSince reports whether the session has been up without interruption since a moment.
func (s *status) upSince(moment time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up && !s.changed.After(moment)
}

// get returns whether the session is up, and what it is doing.
func (s *status) get() (up bool, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up, s.text
}

// down returns for how long the session has been down, 0 while it is up.
func (s *status) down(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up {
		return 0
	}
	return now.Sub(s.changed)
}

// silence returns for how long the session has been down. If it is up, silence returns the time since the last message of the broker. It returns 0 while
// this node does not read, and for up to 1.5 probe intervals, because a probe returns once per interval.
func (s *status) silence(now time.Time) time.Duration {
	if down := s.down(now); down > 0 {
		return down
	}
	if s.blocked() {
		return 0
	}
	quiet := now.Sub(s.created) - time.Duration(s.lastMessage.Load())
	if quiet <= s.probeInterval+s.probeInterval/2 {
		return 0
	}
	return quiet
}
