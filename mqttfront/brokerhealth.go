package mqttfront

import (
	"sync/atomic"
	"time"
)

// silent is how long the broker may say nothing, not even a probe, before this node counts as cut off from it.
const silent = 2 * time.Second

// BrokerSilence returns for how long this node could not have served clients: because its session with the broker is down,
// because nothing has come over it, or because, while it leads, a publishing connection is down. Probes come every
// ProbeInterval, so up to that is no silence at all.
func (f *Front) BrokerSilence() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	silence := f.silence(now)
	if _, leads := f.role.(*leader); leads {
		silence = max(silence, f.mode.silence(f, now))
	}
	return max(silence, f.outbox.Down(now))
}

// silence is that of the ingest session. f.mu is held.
func (f *Front) silence(now time.Time) time.Duration {
	if !f.up {
		return now.Sub(f.upSince)
	}
	return f.quiet(now, &f.heard)
}

// quiet returns for how long nothing has come by a session that is up. f.mu is held.
func (f *Front) quiet(now time.Time, heard *atomic.Int64) time.Duration {
	if f.pushesBack.Load() {
		return 0 // it is this node that does not listen
	}
	quiet := now.Sub(f.started) - time.Duration(heard.Load())
	if quiet <= f.config.ProbeInterval+f.config.ProbeInterval/2 {
		return 0
	}
	return quiet
}

// heardBroker notes that something came from the broker.
func (f *Front) heardBroker() { f.heard.Store(int64(time.Since(f.started))) }

// sessionUpSince reports whether the node's own session is up, and has been since a moment.
func (f *Front) sessionUpSince(moment time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up && !f.upSince.After(moment)
}

// InTakeoverLoop reports whether another client lately took over the leader's publishing connections again and again.
func (f *Front) InTakeoverLoop() bool { return f.outbox.InTakeoverLoop() }

// nagle detects that round trips gather at the time of a delayed acknowledgement: the broker leaves Nagle's algorithm on.
type nagle struct {
	trips, delayed int
	said           bool
}

const (
	nagleFrom  = 38 * time.Millisecond
	nagleTo    = 48 * time.Millisecond
	nagleTrips = 30 // are judged together
)

// trip notes a probe's round trip, and reports whether to log that the trips look like Nagle's algorithm. It does so once.
func (n *nagle) trip(took time.Duration) bool {
	n.trips++
	if took >= nagleFrom && took <= nagleTo {
		n.delayed++
	}
	if n.trips < nagleTrips {
		return false
	}
	looks := n.delayed > n.trips/2 && !n.said
	n.said = n.said || looks
	n.trips, n.delayed = 0, 0
	return looks
}
