package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
)

// connection is one connection of a session.
type connection struct {
	traits            // what all connections of the session share
	subscribed func() // called when the broker has acknowledged the subscriptions
	client     *paho.Client
	conn       *mqttconn.Conn
	acks       *mqttconn.Acks

	handlerCtx context.Context // passed to Handler.Receive
	reason     chan error      // why the connection ends; only the first is kept
	unreturned atomic.Int32    // probes that the broker has acknowledged, and not delivered, since its last message on this connection

	// The fields below are owned by the goroutine that receives.
	stale bool      // requests that arrive now may be older than Config.SessionExpiry: they are not executed
	since time.Time // when the last probe that returned was sent; before that, when the connection began
}

// errEnded means that the connection closed, and that neither a DISCONNECT packet nor a client error says why. Mosquitto 2.0 closes a connection like
// that when another client connects with the same client id.
var errEnded = errors.New("the connection ended")

// close ends the connection. The broker keeps the session.
func (c *connection) close() {
	c.conn.Hurry()
	_ = c.client.Disconnect(&paho.Disconnect{}) // an error means that the connection is gone already
	<-c.client.Done()
	if c.bringsRequests() {
		if c.bringsRequests() {
			c.handler.Flush() // process the messages that arrived last
		}
	}
	_ = c.conn.Close()
}

// serve subscribes, sends probes, and returns when the connection or the context ends. subscribeCtx bounds the wait for the SUBACK.
func (c *connection) serve(ctx, subscribeCtx context.Context) error {
	subscriptions := []paho.SubscribeOptions{{Topic: c.probes.topic, QoS: 1, RetainHandling: 2}}
	if c.bringsRequests() {
		subscriptions = append(subscriptions, paho.SubscribeOptions{Topic: topics.Invoke, QoS: 1, NoLocal: true, RetainAsPublished: true, RetainHandling: 2})
	}
	if err := mqttconn.Subscribe(subscribeCtx, c.client, subscriptions...); err != nil {
		return err
	}
	c.subscribed()
	if c.replies.Topic != "" {
		if err := mqttconn.Subscribe(subscribeCtx, c.client, paho.SubscribeOptions{Topic: c.replies.Topic, QoS: 1, RetainHandling: 2}); err != nil {
			c.sender.set(nil, deniedError{err}) // the session is of use without it
		} else {
			c.sender.set(c.client, nil)
			if c.replies.Begun != nil {
				c.replies.Begun()
			}
		}
		defer c.sender.set(nil, errNotConnected)
	}
	ctx, cancel := context.WithCancel(ctx)
	var probing sync.WaitGroup
	probing.Go(func() { c.probes.run(ctx, c.client, c.probeAcknowledged) })
	defer probing.Wait()
	defer cancel()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-c.reason:
		return err
	case <-c.client.Done():
		select {
		case err := <-c.reason:
			return err
		case <-time.After(time.Second): // paho calls OnClientError and OnServerDisconnect in new goroutines after Done is closed
			return errEnded
		}
	}
}

// end makes serve return with a reason. Only the first reason is kept.
func (c *connection) end(reason error) {
	select {
	case c.reason <- reason:
	default:
	}
}

// maxUnreturned is how many probes in a row the broker may acknowledge without a message on the session.
const maxUnreturned = 10

// errSubscriptionLost says that the broker lost the subscriptions of a session that is up. ejabberd does so when an earlier connection with the same
// client id ends late: it removes the subscriptions of that client id.
var errSubscriptionLost = errors.New("the broker acknowledges probes and delivers none: it has lost the subscription")

// probeAcknowledged ends a connection whose subscriptions the broker has lost. It does not take two other cases for a loss:
// that the broker hangs, because then it sends no PUBACK; and that Receive blocks, because then status.silence is 0.
func (c *connection) probeAcknowledged() {
	if c.unreturned.Add(1) >= maxUnreturned && c.status.silence(time.Now()) >= maxUnreturned/2*c.config.ProbeInterval {
		c.end(errSubscriptionLost)
	}
}

// received handles a message. It blocks while Handler.Receive has no room. Then nothing is read, and TCP applies
// backpressure.
func (c *connection) received(message mqttconn.Message) {
	arrived := time.Now() // before tooOld: a pause of the process after that check must not make the request look younger
	c.status.recordMessage()
	c.unreturned.Store(0)
	done := func() {}
	if message.QoS == 1 {
		number := c.acks.Arrived(message.PacketID)
		done = func() { _ = c.acks.Done(number) } // an error means that the connection has ended: the broker delivers the message again
	}
	switch {
	case message.Topic == c.probes.topic:
		c.handleProbe(message.Payload)
		done()
	case c.replies.Topic != "" && message.Topic == c.replies.Topic:
		c.replies.Receive(message.Publish)
		done()
	case message.Topic != topics.Invoke || !c.bringsRequests(): // not subscribed to
		done()
	case c.tooOld():
		c.env.Metrics.stale.Inc()
		done()
	default:
		c.handler.Receive(c.handlerCtx, message, arrived, done)
		c.status.recordMessage() // Receive may have blocked: that was no silence of the broker
	}
}

// tooOld reports whether a request that is read now may be older than Config.SessionExpiry. Then the following ones are
// taken to be, too, until a younger probe has returned. A suspended process sends no probes: when it resumes, requests may
// have been in its socket for the whole pause.
func (c *connection) tooOld() bool {
	c.stale = c.stale || c.probes.returned.Load() && c.probes.tooOld(time.Since(c.since))
	return c.stale
}

// handleProbe handles a probe that returned. It shows how old the messages behind it can be.
func (c *connection) handleProbe(payload []byte) {
	sent, age, isProbe := c.probes.handle(payload)
	if isProbe {
		c.since, c.stale = sent, c.probes.tooOld(age)
	}
}
