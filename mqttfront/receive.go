package mqttfront

import (
	"context"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// receiver takes what the sessions bring: it is their ingest.Handler.
type receiver struct{ *Front }

// Receive implements ingest.Handler.
func (f receiver) Receive(ctx context.Context, message mqttconn.Message, arrived time.Time, backlog bool, done func()) {
	select {
	case <-f.drain: // not acknowledged: the broker keeps it for whoever comes next
	default:
		f.take(ctx, message, arrived, backlog, done)
	}
}

// Blocked implements ingest.Handler.
func (f receiver) Blocked() bool { return f.pushesBack.Load() }

// Flush implements ingest.Handler.
func (f receiver) Flush() { f.store.Flush() }

// CoalescingDelay implements ingest.Handler.
func (f receiver) CoalescingDelay() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.role.coalescingDelay(f.Front)
}

// DropSince implements ingest.Handler. What came lay in a queue or in a socket for so long that deduplication may have forgotten it, whatever time
// this node thinks that it arrived.
func (f receiver) DropSince(moment time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.staleFrom, f.staleTo = moment, time.Now()
	for r := range f.pending.All() {
		if r.State.IsHeld() {
			f.dropStale(r)
		}
	}
}

// SessionBegun implements ingest.Handler. What ended before it came does not come any more. What does is sent anew, by clients that had no answer.
func (f receiver) SessionBegun() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending.Hints.ForgetArrivals()
}

// take decodes what was received, and takes it in.
func (f *Front) take(ctx context.Context, message mqttconn.Message, arrived time.Time, backlog bool, done func()) {
	r := &pending.Request{Arrived: arrived, Sent: arrived, Redelivered: message.Redelivered, Backlog: backlog}
	origin := f.world.Driver.Origin(message.Publish)
	ttl, verdict, reason := f.decoder.Decode(message.Publish, arrived, origin.QoS, &r.Request)
	if reason != "" {
		f.world.Metrics.ignored.WithLabelValues(reason).Inc()
	}
	switch verdict {
	case wire.VerdictIgnore:
		f.world.Log.Debug("message on the invoke topic is not executed", "reason", reason)
		done()
	case wire.VerdictKick:
		done()
		f.kick(&r.Request)
	default:
		r.Done, r.HoldUntil, r.Command.BrokerTime = done, arrived.Add(ttl), origin.Time
		if !r.Deadline.IsZero() {
			r.Sent = r.Deadline
		}
		r.Size = max(r.Size, wire.RequestOverhead+message.Size) // the request keeps all of the packet that it points into
		f.admit(ctx, r)
	}
}
