package outbox

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/wire"
)

// stableUptime is how long a connection must have been up for the next one to be tried without a
// delay.
const stableUptime = time.Second

// connection is one client id under which a leader publishes, for as long as the node leads. It
// sends what its queue has. It opens a new network connection when the last one is lost.
type connection struct {
	config    *Config
	env       *Environment
	penalties *penalties
	// called for a lost connection when the next one is up
	onLost   func(connectedAt time.Time, uptime time.Duration)
	handler  Handler
	clientID string
	queue    *queue

	refusalLogged atomic.Bool             // it was logged that the broker refuses a reply
	refused       atomic.Pointer[refusal] // the latest reply that the broker refused
	// suspect is the penalty key of the client whose refused reply preceded the latest loss,
	// suspectLosses how often in a row, and spared for how many losses in a row nobody in flight
	// was blamed. Owned by the goroutine that publishes.
	suspect               string
	suspectLosses, spared int

	created   time.Time
	downSince atomic.Int64 // see sinceCreated; 0 while the connection is up
	// size in bytes of the largest packet that the broker accepts, by the latest CONNACK; first set
	// by Connections.start
	maxPacket atomic.Int64

	// notified holds the clients to which a notification was sent since startRecordIfNeeded last
	// began a TLS record. The current record may contain that notification. Owned by the goroutine
	// that publishes.
	notified map[string]struct{}
}

// maxNotified bounds connection.notified; beyond it a new record begins.
const maxNotified = 1024

// loss describes a network connection that has ended. The zero value is none.
type loss struct {
	connectedAt time.Time
	uptime      time.Duration
	err         error // why it ended
}

// run publishes until the context ends, beginning with a publisher that is connected.
func (c *connection) run(ctx context.Context, publisher *mqttconn.Publisher) {
	delay := c.env.Backoff()
	var last loss
	for {
		if publisher != nil {
			blamed := false
			if !last.connectedAt.IsZero() {
				c.onLost(last.connectedAt, last.uptime)
				blamed = c.brokerEnded(last) && !c.blameRefused(last)
			}
			if c.requeue(blamed) {
				delay.Reset() // the output that ended the connection is gone
			}
			last = c.serve(ctx, publisher)
			if ctx.Err() != nil {
				return
			}
			if last.uptime > stableUptime {
				delay.Reset()
			} else {
				// another process may use this client id: back off, so that the two do not take
				// over from each other in step
				delay.Wait(ctx)
			}
		}
		var err error
		if publisher, err = c.reconnect(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			c.env.Log.Warn("a publishing connection is not up", "client", c.clientID, "error", err)
			delay.Wait(ctx)
		}
	}
}

// serve publishes over one network connection until it or the context ends, and closes it.
func (c *connection) serve(ctx context.Context, publisher *mqttconn.Publisher) loss {
	l := loss{connectedAt: time.Now()}
	c.downSince.Store(0)
	c.maxPacket.Store(int64(publisher.MaxPacket()))
	c.pump(ctx, publisher)
	c.downSince.Store(c.sinceCreated(time.Now()))
	publisher.Abort()
	l.uptime, l.err = time.Since(l.connectedAt), publisher.Err()
	if ctx.Err() == nil {
		c.env.Metrics.losses.Inc()
		c.env.Log.Warn("a publishing connection was lost", "client", c.clientID, "error", l.err,
			"taken_over", mqttconn.IsTakenOver(l.err))
	}
	return l
}

// reconnect connects again. It confirms the leadership before and after it connects.
func (c *connection) reconnect(ctx context.Context) (*mqttconn.Publisher, error) {
	if err := c.env.Confirm(ctx); err != nil {
		return nil, err
	}
	publisher, err := c.env.Connect(ctx, c.clientID)
	if err != nil {
		return nil, err
	}
	if err := c.env.Confirm(ctx); err != nil {
		publisher.Abort()
		return nil, err
	}
	return publisher, nil
}

// brokerEnded reports whether the broker probably ended a connection because of a message on it:
// the node's own session was up all the time since the connection began, and the connection did not
// end by a session takeover, by this node, or by the broker's silence.
func (c *connection) brokerEnded(l loss) bool {
	if errors.Is(l.err, mqttconn.ErrSilent) || errors.Is(l.err, mqttconn.ErrClosed) ||
		mqttconn.IsTakenOver(l.err) {
		return false
	}
	return c.env.SessionUpSince(l.connectedAt)
}

// refusal is a reply that the broker refused: its PUBACK had an error.
type refusal struct {
	request *wire.Request
	at      time.Time
}

// refusalWindow is how long after a refused reply the end of the connection counts as its
// consequence.
const refusalWindow = time.Second

// refusedLosses is how many connections must end just after a refused reply to one client for the
// client to be blamed: one loss is no proof.
const refusedLosses = 2

// maxSpared bounds the losses in a row for which nobody is blamed because a reply was refused just
// before. A client that has replies refused all the time must not keep another reply, for which the
// broker ends connections, from being dropped.
const maxSpared = 4

// blameRefused penalizes the client whose reply the broker refused just before it ended the
// connection, the second time, and reports whether the outputs in flight are not to be blamed.
// Mosquitto 2.0 with max_queued_messages 0 acknowledges a reply that its access rules refuse with
// an error, and then ends the connection. What was in flight behind it has no part in that.
func (c *connection) blameRefused(l loss) bool {
	r := c.refused.Swap(nil)
	if r == nil || r.at.Before(l.connectedAt) ||
		l.connectedAt.Add(l.uptime).Sub(r.at) > refusalWindow {
		c.spared = 0
		return false
	}
	if c.spared++; c.spared > maxSpared || c.penalties.has(r.request, time.Now()) {
		return false
	}
	if key := c.penalties.key(r.request); key != c.suspect {
		c.suspect, c.suspectLosses = key, 0
	}
	if c.suspectLosses++; c.suspectLosses >= refusedLosses {
		c.suspect = ""
		c.penalize(r.request, "the broker refused replies to this client, and ended the connection each time")
	}
	return true
}

// penalize begins the penalty of a request's client, and has it disconnected.
func (c *connection) penalize(r *wire.Request, why string) {
	c.penalties.add(r, time.Now())
	c.env.Log.Warn(why+"; it gets no replies for a while",
		"client", r.Command.Principal.ClientID, "user", r.Command.Principal.Username,
		"response_topic", r.ResponseTopic, "penalty", penaltyTime)
	c.handler.Kick(r)
}

// requeue puts the outputs in flight back into the queue. blamed says that the broker ended the
// last connection because of one of them. An output that was blamed too often is dropped, with all
// replies to the same client. requeue reports whether it dropped any.
func (c *connection) requeue(blamed bool) bool {
	abandoned := c.queue.requeue(blamed)
	for _, o := range abandoned {
		if r := o.Request; r != nil {
			c.penalize(r, "reply dropped: the broker closes the connection on replies to this client")
		}
		c.env.Metrics.abandoned.WithLabelValues(o.kind()).Inc()
		c.handler.Published(o)
	}
	return len(abandoned) > 0
}

// pump publishes over one network connection until that or the context ends.
func (c *connection) pump(ctx context.Context, publisher *mqttconn.Publisher) {
	defer context.AfterFunc(ctx, publisher.Stop)() // Flush may wait for the broker to read
	for {
		o, wait := c.queue.next()
		if wait {
			publisher.Flush()
			select {
			case <-ctx.Done():
				return
			case <-publisher.Done():
				return
			case <-c.queue.wake:
			}
			continue
		}
		// if it has ended several connections, it is sent alone
		publisher.Expedite(o.blamedLosses >= soloAfter)
		if !c.send(ctx, publisher, o) {
			return
		}
	}
}

// send publishes one output and reports whether the network connection is still good.
func (c *connection) send(ctx context.Context, publisher *mqttconn.Publisher, o *Output) bool {
	packet := o.Encode(time.Now())
	if packet == nil {
		c.env.Metrics.notifications.WithLabelValues("expired").Inc()
		c.finish(o)
		return true
	}
	c.startRecordIfNeeded(publisher, o)
	done := func(reason byte, err error) { c.publishDone(o, reason, err) }
	err := publisher.Publish(ctx, packet, done)
	for errors.Is(err, mqttconn.ErrTooLarge) && o.shrink() {
		err = publisher.Publish(ctx, o.Encode(time.Now()), done)
	}
	if errors.Is(err, mqttconn.ErrTooLarge) {
		c.env.Metrics.abandoned.WithLabelValues(o.kind()).Inc()
		c.env.Log.Warn("a reply or notification was dropped: it is larger than the broker accepts",
			"kind", o.kind())
		c.finish(o)
		return true
	}
	// an output that could not be sent stays in the in-flight list; requeue puts it back, and
	// counts no loss
	return err == nil
}

// startRecordIfNeeded begins a new TLS record before an output to a client that has a notification
// in the current record. If a client did not subscribe to its notifications, the plugin for
// Mosquitto delivers copies of them to it, at the end of the record. To keep the order, the plugin
// must also copy each later output to that client in the same record, and a copy gets a fixed
// message expiry instead of its own. In a new record the broker delivers a reply itself, with its
// own expiry.
func (c *connection) startRecordIfNeeded(publisher *mqttconn.Publisher, o *Output) {
	client := o.client()
	if _, again := c.notified[client]; again || len(c.notified) >= maxNotified {
		publisher.StartRecord()
		clear(c.notified)
	}
	if o.Event != nil {
		c.notified[client] = struct{}{}
	}
}

// publishDone is called once for each output that was sent: with the reason code of its PUBACK, or
// with an error if the connection ended first.
func (c *connection) publishDone(o *Output, reason byte, err error) {
	if err != nil {
		c.queue.markLost(o)
		return
	}
	c.finish(o)
	if o.Event == nil {
		if reason >= 0x80 {
			c.env.Metrics.repliesRefused.Inc()
			c.refused.Store(&refusal{o.Request, time.Now()})
			if c.refusalLogged.CompareAndSwap(false, true) {
				c.env.Log.Warn(
					"the broker refuses a reply, and may refuse others: do its access rules let nodes publish there?", "topic", o.Request.ResponseTopic, "reason", reason)
			}
		}
		return
	}
	switch {
	case reason == mqttconn.ReasonNoMatchingSubscriber:
		c.env.Metrics.notifications.WithLabelValues("no_subscriber").Inc()
		c.handler.NoSubscriber(o)
	case reason >= 0x80:
		c.env.Metrics.notifications.WithLabelValues("refused").Inc()
	default:
		c.env.Metrics.notifications.WithLabelValues("published").Inc()
	}
}

// finish ends an output that is in flight and reports it as published: the broker acknowledged it,
// or it expired, or it is too large.
func (c *connection) finish(o *Output) {
	c.queue.finish(o)
	c.handler.Published(o)
}

// down returns for how long the connection has been down.
func (c *connection) down(now time.Time) time.Duration {
	if since := c.downSince.Load(); since != 0 {
		return time.Duration(c.sinceCreated(now) - since)
	}
	return 0
}

// sinceCreated returns a moment in nanoseconds since the connection was created, by the monotonic
// clock.
func (c *connection) sinceCreated(moment time.Time) int64 {
	return int64(moment.Sub(c.created)) + 1
}
