package mqttfront

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/wire"
)

// outgoing is a reply or a notification on its way to the broker.
type outgoing struct {
	leader *leader // the leader that sends it
	index  uint64  // of its log entry; 0 for what is not in the log
	queued time.Time

	request  *request  // a reply
	deadline time.Time // of the request: the request's own may still move
	result   fsm.Result

	event    *fsm.Event // a notification
	receiver *fsm.Receiver
	worth    time.Duration // how long after queued it is worth delivering

	// The fields below are guarded by publishQueue.mu.
	lost    bool // its connection ended before the broker acknowledged it
	losses  int  // connections that the broker ended while it was in flight, and the broker was there
	acked   bool
	givenUp bool // while it was in the queue
}

// size returns the bytes that a notification keeps in memory.
func (o *outgoing) size() int { return len(o.event.Key) + len(o.event.Value) }

// How often an output may be in flight when the broker ends the connection and is there itself: at aloneAt losses it is sent alone, and at
// abandonedAt it counts as published. A reply on which the broker ends connections must not stall the rest. The first loss is no proof, even of
// a single output: something between node and broker may have ended the connection.
const (
	aloneAt     = 1
	abandonedAt = 2
)

// publishQueue has the replies and notifications that leave by one publishing connection. What one client receives goes through one queue, in order.
type publishQueue struct {
	front    *Front
	clientID string

	downSince atomic.Int64 // milliseconds since the Unix epoch; 0 while it is up

	mu            sync.Mutex
	queue         []*outgoing
	flight        []*outgoing // sent, in order; the first is not acknowledged
	notifications []*outgoing // in the queue, in order
	bytes         int         // of their keys and values
	dead          int         // given up, and still in the queue
	wake          chan struct{}

	// notified are clients with a notification since the last boundary on the connection. Owned by the goroutine that publishes.
	notified map[string]struct{}
}

// maxNotified bounds publishQueue.notified; beyond it a boundary is made.
const maxNotified = 1024

// separate begins a new record of the connection before an output to a client that has a notification in this one. The plugin for Mosquitto
// delivers notifications to clients that did not subscribe when the broker has handled a whole record: a reply in the same record would have to
// be delivered in the same way.
func (q *publishQueue) separate(publisher *mqttconn.Publisher, o *outgoing) {
	var client string
	if o.event != nil {
		client = o.receiver.ClientID
	} else {
		client = o.request.Command.Principal.ClientID
	}
	if _, again := q.notified[client]; again || len(q.notified) >= maxNotified {
		publisher.Boundary()
		clear(q.notified)
	}
	if o.event != nil {
		q.notified[client] = struct{}{}
	}
}

func newPublishQueue(front *Front, clientID string) *publishQueue {
	q := &publishQueue{front: front, clientID: clientID, wake: make(chan struct{}, 1), notified: make(map[string]struct{})}
	q.downSince.Store(time.Now().UnixMilli())
	return q
}

// push queues an output. Replies are bounded by the requests that are taken up; notifications are bounded here: it returns the
// oldest when there are too many, or too large ones.
func (q *publishQueue) push(o *outgoing) (givenUp []*outgoing) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, o)
	if o.event != nil {
		q.notifications = append(q.notifications, o)
		q.bytes += o.size()
		for len(q.notifications) > q.front.config.QueueNotifications || len(q.notifications) > 1 && q.bytes > q.front.config.QueueBytes {
			oldest := q.notifications[0]
			oldest.givenUp = true // next passes it over
			q.bytes -= oldest.size()
			q.notifications = q.notifications[1:]
			givenUp = append(givenUp, oldest)
			q.dead++
		}
		if q.dead > len(q.queue)/2 {
			q.queue = slices.DeleteFunc(q.queue, func(o *outgoing) bool { return o.givenUp })
			q.dead = 0
		}
	}
	q.poke()
	return givenUp
}

func (q *publishQueue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run publishes until the context ends, over one connection after the other.
func (q *publishQueue) run(ctx context.Context, publisher *mqttconn.Publisher) {
	delay := q.front.config.BackoffMin
	var began time.Time // of the connection before
	var lived time.Duration
	var lostBy error
	for {
		if publisher != nil {
			blamed := false
			if !began.IsZero() {
				q.front.publisherLost(began, lived)
				blamed = q.front.brokerEnded(began, lostBy)
			}
			began = time.Now()
			q.downSince.Store(0)
			if q.requeue(blamed) {
				delay = q.front.config.BackoffMin // one less that can end a connection
			}
			q.pump(ctx, publisher)
			q.downSince.Store(time.Now().UnixMilli())
			publisher.Abort()
			if ctx.Err() != nil {
				return
			}
			q.front.world.Metrics.publisherLosses.Inc()
			lived = time.Since(began)
			lostBy = publisher.Err()
			q.front.world.Log.Warn("a publishing connection was lost", "client", q.clientID, "error", lostBy, "taken_over", isTakenOver(lostBy))
			if lived > steady {
				delay = q.front.config.BackoffMin
			} else { // it may be contested: not at once, and not at the pace of the other
				q.front.pause(ctx, delay)
				delay = min(2*delay, q.front.config.BackoffMax)
			}
		}
		var err error
		if publisher, err = q.reconnect(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			q.front.world.Log.Warn("a publishing connection is not up", "client", q.clientID, "error", err)
			q.front.pause(ctx, delay)
			delay = min(2*delay, q.front.config.BackoffMax)
		}
	}
}

// pump publishes over one connection until that or the context ends.
func (q *publishQueue) pump(ctx context.Context, publisher *mqttconn.Publisher) {
	for {
		o, wait := q.next()
		if wait {
			publisher.Flush()
			select {
			case <-ctx.Done():
				return
			case <-publisher.Done():
				return
			case <-q.wake:
			}
			continue
		}
		publisher.Expedite(o.losses >= aloneAt) // the next one waits for its PUBACK
		if !q.send(ctx, publisher, o) {
			return
		}
	}
}

// next takes the next output from the queue, or says to wait: for one, or until one that was lost too often may go alone.
func (q *publishQueue) next() (o *outgoing, wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) > 0 && q.queue[0].givenUp {
		q.queue[0] = nil
		q.queue = q.queue[1:]
		q.dead--
	}
	if len(q.queue) == 0 ||
		(len(q.flight) > 0 && (q.queue[0].losses >= aloneAt || q.flight[len(q.flight)-1].losses >= aloneAt)) {
		return nil, true
	}
	o = q.queue[0]
	q.queue[0] = nil
	q.queue = q.queue[1:]
	if o.event != nil { // the oldest
		q.notifications = q.notifications[1:]
		q.bytes -= o.size()
	}
	q.flight = append(q.flight, o)
	return o, false
}

// send publishes one output and reports whether the connection is still good.
func (q *publishQueue) send(ctx context.Context, publisher *mqttconn.Publisher, o *outgoing) bool {
	packet := q.encode(o)
	if packet == nil { // not worth delivering any more
		q.front.world.Metrics.notifications.WithLabelValues("expired").Inc()
		q.acknowledge(o)
		return true
	}
	q.separate(publisher, o)
	done := func(reason byte, err error) { q.acked(o, reason, err) }
	err := publisher.Publish(ctx, packet, done)
	if errors.Is(err, mqttconn.ErrTooLarge) && o.request != nil && o.result.Code == fsm.CodeValue {
		o.result = fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorReplyTooLarge}
		err = publisher.Publish(ctx, q.encode(o), done)
	}
	if errors.Is(err, mqttconn.ErrTooLarge) {
		kind := "reply"
		if o.event != nil {
			kind = "notification"
		}
		q.front.world.Metrics.abandoned.WithLabelValues(kind).Inc()
		q.front.world.Log.Warn("larger than the broker accepts, not sent", "kind", kind)
		q.acknowledge(o)
		return true
	}
	return err == nil // what was not sent is in flight and unacknowledged: requeue finds it, as one that was not lost
}

func (q *publishQueue) encode(o *outgoing) *packets.Publish {
	now := time.Now()
	if o.event == nil {
		return wire.EncodeReply(&o.request.Request, o.deadline, &o.result, now)
	}
	left := o.worth - now.Sub(o.queued)
	if left <= 0 {
		return nil
	}
	return wire.EncodeNotification(o.event, o.receiver, left)
}

// acked is told what became of an output that was sent.
func (q *publishQueue) acked(o *outgoing, reason byte, err error) {
	if err != nil {
		q.mu.Lock()
		o.lost = true
		q.mu.Unlock()
		return
	}
	q.acknowledge(o)
	if o.event != nil {
		q.front.notified(o, reason)
	}
}

// acknowledge lets go of an output.
func (q *publishQueue) acknowledge(o *outgoing) {
	q.mu.Lock()
	o.acked = true
	for len(q.flight) > 0 && q.flight[0].acked {
		q.flight[0] = nil
		q.flight = q.flight[1:]
	}
	if len(q.flight) == 0 {
		q.poke()
	}
	q.mu.Unlock()
	q.front.published(o)
}

// requeue puts what was in flight on a connection that has ended before the rest of the queue, in order. When the connection's end is blamed on
// what was in flight, an output that was lost too often is abandoned, with all replies to the same culprit. It reports whether there was one.
func (q *publishQueue) requeue(blamed bool) bool {
	var again, abandoned []*outgoing
	q.mu.Lock()
	for _, o := range q.flight {
		if o.lost && blamed {
			o.losses++
		}
		switch {
		case o.acked:
		case o.losses >= abandonedAt:
			abandoned = append(abandoned, o)
		default:
			again = append(again, o)
		}
		o.lost = false
	}
	q.flight = nil
	q.queue = append(again, q.queue...)
	for _, offender := range abandoned {
		if offender.request != nil {
			q.queue = slices.DeleteFunc(q.queue, func(o *outgoing) bool {
				same := o.request != nil && q.front.culprit(o.request) == q.front.culprit(offender.request)
				if same {
					abandoned = append(abandoned, o)
				}
				return same
			})
		}
	}
	q.notifications, q.bytes = nil, 0
	for _, o := range q.queue {
		if o.event != nil && !o.givenUp {
			q.notifications = append(q.notifications, o)
			q.bytes += o.size()
		}
	}
	q.mu.Unlock()
	for _, o := range abandoned {
		q.front.abandon(o)
	}
	return len(abandoned) > 0
}

// notified takes note of the broker's answer to a notification. One that finds no subscriber ends its watch, if that is older
// than the change: a client may watch first and subscribe then.
func (f *Front) notified(o *outgoing, reason byte) {
	switch {
	case reason == mqttconn.ReasonNoMatchingSubscriber:
		f.world.Metrics.notifications.WithLabelValues("no_subscriber").Inc()
		end := fsm.Command{
			Kind: fsm.KindWatchEnd, Principal: principal(o.receiver.ClientID), Key: []byte(o.event.Key),
			NotificationIndex: o.event.Index, PublishedAt: o.event.At,
		}
		if !f.subscribe(o.receiver.ClientID, &end) {
			f.propose(end)
		}
	case reason >= 0x80:
		f.world.Metrics.notifications.WithLabelValues("refused").Inc()
	default:
		f.world.Metrics.notifications.WithLabelValues("published").Inc()
	}
}
