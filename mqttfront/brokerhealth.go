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
	if f.outbox != nil {
		silence = max(silence, f.outbox.down(now))
	}
	return silence
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

func (f *Front) setOutbox(outbox *outbox) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outbox = outbox
}

// down returns for how long a publishing connection has been down.
func (o *outbox) down(now time.Time) (longest time.Duration) {
	for _, queue := range o.queues {
		if since := queue.downSince.Load(); since != 0 {
			longest = max(longest, now.Sub(time.UnixMilli(since)))
		}
	}
	return longest
}

// takeoverLoop detects that another client takes over the leader's publishing connections again and again: another cluster of the same name at the
// same broker.
type takeoverLoop struct {
	losses   []time.Time // in the window
	detected time.Time   // last time
}

const (
	loopWindow  = time.Minute
	loopLosses  = 4 // in the window, while the broker is there
	loopSilence = 10 * time.Minute
)

// lost notes the loss of a publishing connection, and reports whether to log a loop: it does so once for each loopSilence.
func (l *takeoverLoop) lost(now time.Time) bool {
	l.losses = append(l.losses, now)
	for len(l.losses) > 0 && now.Sub(l.losses[0]) > loopWindow {
		l.losses = l.losses[1:]
	}
	if len(l.losses) < loopLosses || now.Sub(l.detected) < loopSilence {
		return false
	}
	l.detected = now
	return true
}

// publisherLost notes the loss of a publishing connection that began at a time and was up for a time. It is called when the connection is up again.
// A loss counts for the loop if the connection was short and the ingest session was up throughout: then the broker was not the reason.
func (f *Front) publisherLost(began time.Time, lived time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.up || f.upSince.After(began) || lived > shortSession || !f.loop.lost(time.Now()) {
		return
	}
	f.world.Metrics.contested.Inc()
	f.world.Log.Error("the publishing connections are taken over again and again: does another cluster of this name use the same broker? give each its own cluster.name",
		"cluster", f.config.Cluster)
}

// InTakeoverLoop reports whether another client lately took over the leader's publishing connections again and again.
func (f *Front) InTakeoverLoop() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.loop.detected.IsZero() && time.Since(f.loop.detected) < loopSilence
}

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
