package role

import (
	"context"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// Receiver decodes what the sessions bring and admits it: it is their ingest.Handler.
type Receiver struct {
	dispatcher *Dispatcher
	driver     broker.Driver
	decoder    wire.Decoder
	drain      <-chan struct{} // closed when nothing more is taken up
	clients    *Clients
}

// NewReceiver returns a receiver that takes up requests until drain is closed. While the node leads, it disconnects clients whose response topic is
// invalid.
func NewReceiver(dispatcher *Dispatcher, driver broker.Driver, decoder wire.Decoder, drain <-chan struct{}, clients *Clients) *Receiver {
	return &Receiver{dispatcher: dispatcher, driver: driver, decoder: decoder, drain: drain, clients: clients}
}

// Receive implements ingest.Handler.
func (c *Receiver) Receive(ctx context.Context, message mqttconn.Message, arrival ingest.Arrival, done func()) {
	select {
	case <-c.drain: // not acknowledged: the broker keeps it for the next session
	default:
		c.decodeAndAdmit(ctx, message, arrival, done)
	}
}

// Flush implements ingest.Handler.
func (c *Receiver) Flush() { c.dispatcher.flush() }

// Blocked implements ingest.Handler.
func (c *Receiver) Blocked() bool { return c.dispatcher.Blocked() }

// CoalescingDelay implements ingest.Handler.
func (c *Receiver) CoalescingDelay() time.Duration { return c.dispatcher.coalescingDelay() }

// DropSince implements ingest.Handler. The requests were in a queue or in a socket for so long that the dedup table may have forgotten their outcomes.
// Request.Arrived, the time at which they were read, does not show that.
func (c *Receiver) DropSince(moment time.Time) { c.dispatcher.dropSince(moment) }

// SessionBegun implements ingest.Handler. Copies of ended requests are not expected any more. A copy that still arrives was sent again by a client that
// got no answer.
func (c *Receiver) SessionBegun() { c.dispatcher.forgetArrivals() }

// decodeAndAdmit decodes what was received, and takes it in.
func (c *Receiver) decodeAndAdmit(ctx context.Context, message mqttconn.Message, arrival ingest.Arrival, done func()) {
	r := &pending.Request{Arrived: arrival.At, SentEstimate: arrival.At, BrokerAfter: arrival.BrokerAfter, Redelivered: message.Redelivered, Backlog: arrival.Backlog}
	if message.Redelivered { // BrokerAfter may be wrong then: see ingest.Arrival
		r.BrokerAfter = time.Time{}
	}
	origin := c.driver.Origin(message.Publish)
	ttl, verdict, reason := c.decoder.Decode(message.Publish, arrival.At, origin.QoS, &r.Request)
	if reason != "" {
		c.dispatcher.countIgnored(reason)
	}
	switch verdict {
	case wire.VerdictIgnore:
		done()
	case wire.VerdictKick:
		done()
		if c.dispatcher.leads() {
			c.clients.Kick(&r.Request)
		}
	default:
		r.Done, r.HoldUntil, r.Command.BrokerTime = done, arrival.At.Add(ttl), origin.Time
		if !r.Deadline.IsZero() {
			r.SentEstimate = r.Deadline
		}
		r.Size = max(r.Size, wire.RequestOverhead+message.Size) // the request keeps all of the packet that it points into
		c.dispatcher.admit(ctx, r)
	}
}
