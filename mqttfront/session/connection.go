package session

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
)

// connection is one connection of a session.
type connection struct {
	traits            // what all connections of the session share
	subscribed func() // called when the broker has acknowledged the subscriptions
	conn       *mqttconn.Conn
	acks       *mqttconn.Acks

	handlerCtx  context.Context // passed to Handler.Receive; ends with the connection
	endHandling context.CancelFunc
	reason      chan error // why the connection ends; only the first is kept
	// probes that the broker has acknowledged, and not delivered, since its last message on this
	// connection
	unreturned atomic.Int32

	mu sync.Mutex // guards the fields below
	// receivedAfter is a moment after which the broker received what arrives now, and sentAfter one
	// after which it sent that. They begin at the horizon and at the CONNECT, and both move to when
	// each probe was sent that returns.
	receivedAfter, sentAfter time.Time
	// probes that returned on this connection and whose PUBACK was not written, in order
	unsent []returnedProbe
	// when the newest probe was sent whose PUBACK was written; zero if there is none
	acknowledged time.Time
}

// returnedProbe is a probe that returned.
type returnedProbe struct {
	ack  uint64 // its number in connection.acks
	sent time.Time
}

// close ends the connection. The broker keeps the session.
func (c *connection) close() {
	c.endHandling() // Handler.Receive may wait for room
	c.conn.Close()
	if c.bringsRequests() {
		c.handler.Flush() // process the messages that arrived last
	}
}

// subscribe subscribes to the probes and, for the cluster's session, to requests.
func (c *connection) subscribe(ctx context.Context) error {
	// at QoS 0, this node sends nothing back: see nagle
	subscriptions := []packets.SubOptions{{Topic: c.probes.topic, RetainHandling: 2}}
	if c.bringsRequests() {
		subscriptions[0].QoS = 1
		subscriptions = append(subscriptions,
			packets.SubOptions{
				Topic: topics.Invoke, QoS: 1, NoLocal: true, RetainAsPublished: true,
				RetainHandling: 2,
			})
	}
	return c.conn.Subscribe(ctx, subscriptions...)
}

// serve subscribes, sends probes, and returns when the connection or the context ends. subscribeCtx
// bounds the wait for the SUBACK.
func (c *connection) serve(ctx, subscribeCtx context.Context) error {
	if err := c.subscribe(subscribeCtx); err != nil {
		return err
	}
	c.subscribed()
	if c.replies.Topic != "" {
		if err := c.conn.Subscribe(subscribeCtx,
			packets.SubOptions{Topic: c.replies.Topic, QoS: 1, RetainHandling: 2}); err != nil {
			if subscribeCtx.Err() != nil || c.conn.Err() != nil {
				return err // that was no denial
			}
			c.sender.set(nil, deniedError{err}) // the session is of use without it
		} else {
			c.sender.set(c.conn, nil)
			if c.replies.Begun != nil {
				c.replies.Begun()
			}
		}
		defer c.sender.set(nil, errNotConnected)
	}
	ctx, cancel := context.WithCancel(ctx)
	var probing sync.WaitGroup
	probing.Go(func() { c.probes.run(ctx, c, func() { c.probeAcknowledged(ctx) }) })
	defer probing.Wait()
	defer cancel()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-c.reason:
		return err
	case <-c.conn.Done():
		return c.conn.Err()
	}
}

// end makes serve return with a reason. Only the first reason is kept. Nothing that arrives from
// now on is handled: what was given back is to be executed before what came behind it.
func (c *connection) end(reason error) {
	c.endHandling()
	select {
	case c.reason <- reason:
	default:
	}
}

// maxUnreturned is how many probes in a row the broker may acknowledge without a message on the
// session.
const maxUnreturned = 10

// errSubscriptionLost says that the broker lost the subscriptions of a session that is up. ejabberd
// does so when an earlier connection with the same client id ends late: it removes the
// subscriptions of that client id.
var errSubscriptionLost = errors.New(
	"the broker acknowledges probes and delivers none: it has lost the subscription")

// probeAcknowledged subscribes again when probes are late, and ends a connection whose
// subscriptions the broker has lost for good. It does not take two other cases for a loss: that the
// broker hangs, because then it sends no PUBACK; and that this node waits with what came, because
// then status.silence is 0.
func (c *connection) probeAcknowledged(ctx context.Context) {
	unreturned, silence := c.unreturned.Add(1), c.status.silence(time.Now())
	switch {
	case silence == 0:
	case unreturned >= maxUnreturned && silence >= maxUnreturned/2*c.config.ProbeInterval:
		c.end(errSubscriptionLost)
	case unreturned%2 == 0: // a successor is told of 2 s of silence, and would meet the same
		c.env.Log.Warn("probes do not return: subscribing again", "client", c.clientID)
		subscribing, cancel := context.WithTimeout(ctx, c.env.Login.Timeout)
		defer cancel()
		if err := c.subscribe(subscribing); err != nil && ctx.Err() == nil {
			c.end(err)
		}
	}
}

// received handles a message. It blocks while Handler.Receive has no room. Then nothing is read,
// and TCP applies backpressure.
func (c *connection) received(message mqttconn.Message) {
	if c.handlerCtx.Err() != nil {
		return // the connection is being closed: the broker delivers the message again
	}
	arrival := Arrival{At: time.Now()}
	c.status.recordMessage()
	c.unreturned.Store(0)
	number, done := uint64(0), func() {}
	if message.QoS == 1 {
		number = c.acks.Arrived(message.PacketID)
		// an error means that the connection has ended: the broker delivers the message again
		done = func() { _ = c.acks.Done(number) }
	}
	switch {
	case message.Topic == c.probes.topic:
		c.handleProbe(message.Payload, number)
		done()
	case c.replies.Topic != "" && message.Topic == c.replies.Topic:
		c.replies.Receive(message.Publish)
		done()
	case message.Topic != topics.Invoke || !c.bringsRequests(): // not subscribed to
		done()
	default:
		c.mu.Lock()
		arrival.ReceivedAfter, arrival.SentAfter = c.receivedAfter, c.sentAfter
		c.mu.Unlock()
		c.handler.Receive(c.handlerCtx, message, arrival, done)
		c.status.recordMessage() // Receive may have blocked: that was no silence of the broker
	}
}

// begin notes when CONNECT was sent. A broker that had no session has received nothing before.
func (c *connection) begin(connect time.Time, sessionPresent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sentAfter = connect
	if !sessionPresent {
		c.receivedAfter = later(c.receivedAfter, connect)
	}
}

// probeReturned notes when a probe was sent that has returned: the broker received, and sent, what
// follows it after that.
func (c *connection) probeReturned(sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receivedAfter, c.sentAfter = later(c.receivedAfter, sent), later(c.sentAfter, sent)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// handleProbe handles a message on the probe topic. ack is its number in acks.
func (c *connection) handleProbe(payload []byte, ack uint64) {
	sent, horizon, ok := c.probes.returned(payload, c)
	if !ok || !c.bringsRequests() {
		return
	}
	c.probeReturned(sent)
	c.mu.Lock()
	c.unsent = append(c.unsent, returnedProbe{ack, sent})
	if len(c.unsent) > maxUnderWay {
		// the newer ones say more, once their PUBACKs are written
		c.unsent = slices.Delete(c.unsent, 0, 1)
	}
	c.mu.Unlock()
	if !horizon.IsZero() {
		c.log.SetHorizon(time.Since(horizon))
	}
}

// acknowledgedUpTo returns when the newest probe was sent that has returned on this connection and
// whose PUBACK was written, and so those of all that was delivered before it. It is the zero time
// if there is none.
func (c *connection) acknowledgedUpTo() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.unsent) > 0 && c.acks.Sent(c.unsent[0].ack) {
		c.acknowledged = c.unsent[0].sent
		c.unsent = slices.Delete(c.unsent, 0, 1)
	}
	return c.acknowledged
}
