package role

import (
	"context"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// Receiver takes what the sessions bring: it is their ingest.Handler.
type Receiver struct {
	*Requests
	driver  broker.Driver
	decoder wire.Decoder
	drain   <-chan struct{} // closed when nothing more is taken up
	kick    func(*wire.Request)
}

// NewReceiver returns a receiver that takes up requests until drain is closed. It tells kick of those whose response topic is invalid.
func NewReceiver(requests *Requests, driver broker.Driver, decoder wire.Decoder, drain <-chan struct{}, kick func(*wire.Request)) *Receiver {
	return &Receiver{Requests: requests, driver: driver, decoder: decoder, drain: drain, kick: kick}
}

// Receive implements ingest.Handler.
func (c *Receiver) Receive(ctx context.Context, message mqttconn.Message, arrived time.Time, backlog bool, done func()) {
	select {
	case <-c.drain: // not acknowledged: the broker keeps it for whoever comes next
	default:
		c.decodeAndAdmit(ctx, message, arrived, backlog, done)
	}
}

// Flush implements ingest.Handler.
func (c *Receiver) Flush() { c.store.Flush() }

// CoalescingDelay implements ingest.Handler.
func (c *Receiver) CoalescingDelay() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.role.coalescingDelay()
}

// DropSince implements ingest.Handler. What came lay in a queue or in a socket for so long that deduplication may have forgotten it, whatever time
// this node thinks that it arrived.
func (c *Receiver) DropSince(moment time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.staleFrom, c.staleTo = moment, time.Now()
	for r := range c.pending.All() {
		if r.State().IsHeld() {
			c.dropStaleLocked(r)
		}
	}
}

// SessionBegun implements ingest.Handler. What ended before it came does not come any more. What does is sent anew, by clients that had no answer.
func (c *Receiver) SessionBegun() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending.Hints.ForgetArrivals()
}

// decodeAndAdmit decodes what was received, and takes it in.
func (c *Receiver) decodeAndAdmit(ctx context.Context, message mqttconn.Message, arrived time.Time, backlog bool, done func()) {
	r := &pending.Request{Arrived: arrived, SendOrder: arrived, Redelivered: message.Redelivered, Backlog: backlog}
	origin := c.driver.Origin(message.Publish)
	ttl, verdict, reason := c.decoder.Decode(message.Publish, arrived, origin.QoS, &r.Request)
	if reason != "" {
		c.metrics.Ignored.WithLabelValues(reason).Inc()
	}
	switch verdict {
	case wire.VerdictIgnore:
		c.log.Debug("message on the invoke topic is not executed", "reason", reason)
		done()
	case wire.VerdictKick:
		done()
		c.kick(&r.Request)
	default:
		r.Done, r.HoldUntil, r.Command.BrokerTime = done, arrived.Add(ttl), origin.Time
		if !r.Deadline.IsZero() {
			r.SendOrder = r.Deadline
		}
		r.Size = max(r.Size, wire.RequestOverhead+message.Size) // the request keeps all of the packet that it points into
		c.admit(ctx, r)
	}
}
