package ingest

import (
	"sync"
	"sync/atomic"
	"time"
)

// status is whether a session is up, and when the broker last sent something by it. All methods are safe for concurrent use.
type status struct {
	blocked       func() bool // reports whether it is this node that does not read
	probeInterval time.Duration
	began         time.Time
	heard         atomic.Int64 // when the broker last sent something: nanoseconds since began

	mu    sync.Mutex
	begun time.Time // the last connection began to bring messages, or this process began
	up    bool
	since time.Time // it is up or down since then
	text  string    // what the session is doing, for people
}

func newStatus(blocked func() bool, probeInterval time.Duration) *status {
	now := time.Now()
	return &status{blocked: blocked, probeInterval: probeInterval, began: now, begun: now, since: now, text: "not connected yet"}
}

// set notes whether the session is up, and returns whether it was.
func (s *status) set(up bool, text string) (wasUp bool) {
	s.hear()
	s.mu.Lock()
	defer s.mu.Unlock()
	wasUp = s.up
	if up != s.up {
		s.since = time.Now()
	}
	s.up, s.text = up, text
	return wasUp
}

// begin notes that a connection begins to bring messages.
func (s *status) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = time.Now()
}

// hear notes that the broker sent something by the session.
func (s *status) hear() { s.heard.Store(int64(time.Since(s.began))) }

// upSince reports whether the session is up, and has been since a moment.
func (s *status) upSince(moment time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up && !s.since.After(moment)
}

// is returns whether the session is up, and what it is doing.
func (s *status) is() (up bool, text string) {
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
	return now.Sub(s.since)
}

// silence returns for how long nothing could come by the session: it is down, or the broker sent nothing, not even a probe. Probes come every
// probeInterval, so up to that is no silence at all.
func (s *status) silence(now time.Time) time.Duration {
	if down := s.down(now); down > 0 {
		return down
	}
	if s.blocked() {
		return 0
	}
	quiet := now.Sub(s.began) - time.Duration(s.heard.Load())
	if quiet <= s.probeInterval+s.probeInterval/2 {
		return 0
	}
	return quiet
}
