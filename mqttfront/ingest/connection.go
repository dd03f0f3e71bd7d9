package ingest

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
	session *session
	client  *paho.Client
	conn    *mqttconn.Conn
	acks    *mqttconn.Acks

	heartbeat *heartbeat
	queued    time.Duration // how old what the broker had for the session may have been when the connection began
	stale     atomic.Bool   // requests that arrive now may be older than Config.SessionAge: they are not executed
	since     time.Time     // the broker received what comes now after this moment. Owned by the receiving goroutine.
	handled   context.Context
	reason    chan error // why the connection ended; only the first is kept
}

// errEnded is all that is known of a connection that the broker closed without a word, as Mosquitto 2.0 does when another client
// connects under the same client id.
var errEnded = errors.New("the connection ended")

// close ends the connection. The broker keeps the session.
func (c *connection) close() {
	c.conn.Hurry()
	_ = c.client.Disconnect(&paho.Disconnect{}) // an error means that the connection is gone already
	<-c.client.Done()
	c.session.handler.Flush() // what came last
	_ = c.conn.Close()
}

// serve subscribes and stays until the connection or the context ends.
func (c *connection) serve(ctx, subscribing context.Context) error {
	subscriptions := []paho.SubscribeOptions{{Topic: c.session.probes.topic, QoS: 1, RetainHandling: 2}}
	if c.session.carriesRequests {
		subscriptions = append(subscriptions, paho.SubscribeOptions{Topic: topics.Invoke, QoS: 1, NoLocal: true, RetainAsPublished: true, RetainHandling: 2})
	}
	if err := mqttconn.Subscribe(subscribing, c.client, subscriptions...); err != nil {
		return err
	}
	c.session.status.begin()
	c.session.setStatus(true, "connected")
	c.session.env.Log.Info("broker session up", "client", c.session.clientID)
	c.session.probes.contact()
	ctx, cancel := context.WithCancel(ctx)
	var probing sync.WaitGroup
	probing.Go(func() { c.session.probes.run(ctx, c.client) })
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
		case <-time.After(time.Second): // the callbacks come after the end, each in a goroutine of its own
			return errEnded
		}
	}
}

func (c *connection) ended(err error) {
	select {
	case c.reason <- err:
	default:
	}
}

// received takes a message from the connection, as far as it can: while a request waits for room, TCP pushes back.
func (c *connection) received(message mqttconn.Message) {
	s := c.session
	s.status.hear()
	done := func() {}
	if message.QoS == 1 {
		number := c.acks.Arrived(message.PacketID)
		done = func() { _ = c.acks.Done(number) } // an error means that the connection has ended: the broker delivers the message again
	}
	if s.carriesRequests && message.Topic == topics.Invoke && c.tooOld() {
		c.expire()
	}
	switch {
	case c.stale.Load() && !s.shared:
		// Not acknowledged: the session is about to end. A fresh probe does not clear stale here: a request that was left out before it
		// may precede one of the same client that follows it.
	case message.Topic == s.probes.topic:
		c.probed(message.Payload)
		done()
	case c.stale.Load(): // too old to execute. The session goes on: it is the only one that receives requests
		s.env.Metrics.stale.Inc()
		done()
	case message.Topic != topics.Invoke || !s.carriesRequests: // not subscribed to
		done()
	default:
		s.handler.Receive(c.handled, message, time.Now(), s.probes.backlog.Load(), done)
	}
}

// tooOld reports whether what is read now may be older than the session's age. A process that was stopped sent no probes meanwhile: what it reads
// from its socket when it goes on may have been there all the time.
func (c *connection) tooOld() bool {
	probes := c.session.probes
	if probes.returned.Load() {
		return probes.tooOld(time.Since(c.since))
	}
	return c.stalled(c.heartbeat.silent())
}

// handleGap handles the time between two heartbeats.
func (c *connection) handleGap(gap time.Duration) {
	if c.session.carriesRequests && !c.session.probes.returned.Load() && c.stalled(gap) {
		c.expire()
	}
}

// stalled reports whether a message that is read after a gap of the heartbeat may be older than the session's age. The heartbeat is used until the first
// probe has returned. It is not used for the leader's session, because no other node receives the requests that would be dropped.
func (c *connection) stalled(gap time.Duration) bool {
	return !c.session.shared && gap > 2*c.session.config.ProbeInterval && c.session.probes.tooOld(c.queued+gap)
}

// expire makes what comes from now on count as too old.
func (c *connection) expire() {
	if c.stale.Swap(true) {
		return
	}
	c.session.probes.expired()
	if !c.session.shared {
		c.ended(errStale)
	}
}

// probed handles a probe. What follows a stale one is too old to be executed: on the leader's session until a fresh one comes, on
// the node's own session until the connection ends, which is at once.
func (c *connection) probed(payload []byte) {
	sent, fresh, isProbe := c.session.probes.handle(payload)
	if !isProbe {
		return
	}
	c.since = sent
	switch {
	case c.session.shared:
		c.stale.Store(!fresh)
	case !fresh:
		c.stale.Store(true)
		c.ended(errStale)
	}
}
