package leader

import (
	"context"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/session"
	"holdfast/mqttfront/wire"
)

// Admission takes what a Receiver has decoded. It is implemented by a Dispatcher, and is safe for
// concurrent use.
type Admission interface {
	// Admit waits for room and takes up a request. If the node stops or the context ends, it leaves
	// the request unacknowledged.
	Admit(ctx context.Context, r *Request)
	// CountIgnored counts a message that is no request, by the reason.
	CountIgnored(reason string)
	// Blocked reports whether a request waits for room.
	Blocked() bool
	// Flush is called after the last request of a batch.
	Flush()
	// CoalescingDelay returns for how long messages from the broker may gather before they are
	// read.
	CoalescingDelay() time.Duration
}

// Receiver decodes what the cluster's session brings and admits it: it is its session.Handler.
type Receiver struct {
	admission Admission
	driver    broker.Driver
	decoder   wire.Decoder
	drain     <-chan struct{}     // closed when nothing more is taken up
	kick      func(*wire.Request) // disconnects the publisher of a request
	// isQuestion reports whether a message is no request of a client, but this cluster's question
	// whether another store is at the broker.
	isQuestion func(mqttconn.Message) bool
}

// NewReceiver returns a receiver that takes up requests until drain is closed. It calls kick for
// requests whose response topic is invalid. It leaves the messages for which isQuestion returns
// true.
func NewReceiver(admission Admission, driver broker.Driver, decoder wire.Decoder,
	drain <-chan struct{}, kick func(*wire.Request),
	isQuestion func(mqttconn.Message) bool,
) *Receiver {
	return &Receiver{
		admission: admission, driver: driver, decoder: decoder, drain: drain,
		kick: kick, isQuestion: isQuestion,
	}
}

// Receive implements session.Handler.
func (c *Receiver) Receive(ctx context.Context, message mqttconn.Message, arrival session.Arrival,
	done func(),
) {
	if c.isQuestion(message) {
		done()
		return
	}
	select {
	case <-c.drain:
		// it is left in the socket, as all that follows: what the next leader is given is not
		// delivered here before
		c.admission.Flush()
		<-ctx.Done()
	default:
		c.decodeAndAdmit(ctx, message, arrival, done)
	}
}

// Flush implements session.Handler.
func (c *Receiver) Flush() { c.admission.Flush() }

// Blocked implements session.Handler.
func (c *Receiver) Blocked() bool {
	select {
	case <-c.drain:
		return true
	default:
		return c.admission.Blocked()
	}
}

// CoalescingDelay implements session.Handler.
func (c *Receiver) CoalescingDelay() time.Duration { return c.admission.CoalescingDelay() }

// decodeAndAdmit decodes what was received, and takes it in.
func (c *Receiver) decodeAndAdmit(ctx context.Context, message mqttconn.Message,
	arrival session.Arrival, done func(),
) {
	r := &Request{
		Arrived: arrival.At, ReceivedAfter: arrival.ReceivedAfter,
		SentAfter: arrival.SentAfter, Redelivered: message.Redelivered,
	}
	origin := c.driver.Origin(message.Publish)
	ttl, verdict, reason := c.decoder.Decode(message.Publish, arrival.At, origin.QoS, &r.Request)
	if reason != "" {
		c.admission.CountIgnored(reason)
	}
	switch verdict {
	case wire.VerdictIgnore:
		done()
	case wire.VerdictKick:
		done()
		c.kick(&r.Request)
	default:
		r.Done, r.Expires, r.Command.BrokerTime = done, arrival.At.Add(ttl), origin.Time
		// the request keeps all of the packet that it points into
		r.Size = max(r.Size, wire.RequestOverhead+message.Size)
		c.admission.Admit(ctx, r)
	}
}
