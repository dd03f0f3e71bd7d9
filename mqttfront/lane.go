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

	// The fields below are guarded by lane.mu.
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

// lane is one outgoing connection. What one client receives goes through one lane, in order.
type lane struct {
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

// maxNotified bounds lane.notified; beyond it a boundary is made.
const maxNotified = 1024

// separate begins a new record of the connection before an output to a client that has a notification in this one. The plugin for Mosquitto
// delivers notifications to clients that did not subscribe when the broker has handled a whole record: a reply in the same record would have to
// be delivered in the same way.
func (l *lane) separate(publisher *mqttconn.Publisher, o *outgoing) {
	var client string
	if o.event != nil {
		client = o.receiver.ClientID
	} else {
		client = o.request.Command.Principal.ClientID
	}
	if _, again := l.notified[client]; again || len(l.notified) >= maxNotified {
		publisher.Boundary()
		clear(l.notified)
	}
	if o.event != nil {
		l.notified[client] = struct{}{}
	}
}

func newLane(front *Front, clientID string) *lane {
	l := &lane{front: front, clientID: clientID, wake: make(chan struct{}, 1), notified: make(map[string]struct{})}
	l.downSince.Store(time.Now().UnixMilli())
	return l
}

// push queues an output. Replies are bounded by the requests that are taken up; notifications are bounded here: it returns the
// oldest when there are too many, or too large ones.
func (l *lane) push(o *outgoing) (givenUp []*outgoing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, o)
	if o.event != nil {
		l.notifications = append(l.notifications, o)
		l.bytes += o.size()
		for len(l.notifications) > l.front.config.LaneNotifications || len(l.notifications) > 1 && l.bytes > l.front.config.LaneBytes {
			oldest := l.notifications[0]
			oldest.givenUp = true // next passes it over
			l.bytes -= oldest.size()
			l.notifications = l.notifications[1:]
			givenUp = append(givenUp, oldest)
			l.dead++
		}
		if l.dead > len(l.queue)/2 {
			l.queue = slices.DeleteFunc(l.queue, func(o *outgoing) bool { return o.givenUp })
			l.dead = 0
		}
	}
	l.poke()
	return givenUp
}

func (l *lane) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run publishes until the context ends, over one connection after the other.
func (l *lane) run(ctx context.Context, publisher *mqttconn.Publisher) {
	delay := l.front.config.BackoffMin
	var began time.Time // of the connection before
	var lived time.Duration
	var lostBy error
	for {
		if publisher != nil {
			blamed := false
			if !began.IsZero() {
				l.front.laneLost(began, lived)
				blamed = l.front.brokerEnded(began, lostBy)
			}
			began = time.Now()
			l.downSince.Store(0)
			if l.requeue(blamed) {
				delay = l.front.config.BackoffMin // one less that can end a connection
			}
			l.pump(ctx, publisher)
			l.downSince.Store(time.Now().UnixMilli())
			publisher.Abort()
			if ctx.Err() != nil {
				return
			}
			l.front.world.Metrics.laneLosses.Inc()
			lived = time.Since(began)
			lostBy = publisher.Err()
			l.front.world.Log.Warn("a publishing connection was lost", "client", l.clientID, "error", lostBy, "taken_over", isTakenOver(lostBy))
			if lived > steady {
				delay = l.front.config.BackoffMin
			} else { // it may be contested: not at once, and not at the pace of the other
				l.front.pause(ctx, delay)
				delay = min(2*delay, l.front.config.BackoffMax)
			}
		}
		var err error
		if publisher, err = l.reconnect(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			l.front.world.Log.Warn("a publishing connection is not up", "client", l.clientID, "error", err)
			l.front.pause(ctx, delay)
			delay = min(2*delay, l.front.config.BackoffMax)
		}
	}
}

// pump publishes over one connection until that or the context ends.
func (l *lane) pump(ctx context.Context, publisher *mqttconn.Publisher) {
	for {
		o, wait := l.next()
		if wait {
			publisher.Flush()
			select {
			case <-ctx.Done():
				return
			case <-publisher.Done():
				return
			case <-l.wake:
			}
			continue
		}
		publisher.Expedite(o.losses >= aloneAt) // the next one waits for its PUBACK
		if !l.send(ctx, publisher, o) {
			return
		}
	}
}

// next takes the next output from the queue, or says to wait: for one, or until one that was lost too often may go alone.
func (l *lane) next() (o *outgoing, wait bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 && l.queue[0].givenUp {
		l.queue[0] = nil
		l.queue = l.queue[1:]
		l.dead--
	}
	if len(l.queue) == 0 ||
		(len(l.flight) > 0 && (l.queue[0].losses >= aloneAt || l.flight[len(l.flight)-1].losses >= aloneAt)) {
		return nil, true
	}
	o = l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	if o.event != nil { // the oldest
		l.notifications = l.notifications[1:]
		l.bytes -= o.size()
	}
	l.flight = append(l.flight, o)
	return o, false
}

// send publishes one output and reports whether the connection is still good.
func (l *lane) send(ctx context.Context, publisher *mqttconn.Publisher, o *outgoing) bool {
	packet := l.encode(o)
	if packet == nil { // not worth delivering any more
		l.front.world.Metrics.notifications.WithLabelValues("expired").Inc()
		l.acknowledge(o)
		return true
	}
	l.separate(publisher, o)
	done := func(reason byte, err error) { l.acked(o, reason, err) }
	err := publisher.Publish(ctx, packet, done)
	if errors.Is(err, mqttconn.ErrTooLarge) && o.request != nil && o.result.Code == fsm.CodeValue {
		o.result = fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorReplyTooLarge}
		err = publisher.Publish(ctx, l.encode(o), done)
	}
	if errors.Is(err, mqttconn.ErrTooLarge) {
		kind := "reply"
		if o.event != nil {
			kind = "notification"
		}
		l.front.world.Metrics.abandoned.WithLabelValues(kind).Inc()
		l.front.world.Log.Warn("larger than the broker accepts, not sent", "kind", kind)
		l.acknowledge(o)
		return true
	}
	return err == nil // what was not sent is in flight and unacknowledged: requeue finds it, as one that was not lost
}

func (l *lane) encode(o *outgoing) *packets.Publish {
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
func (l *lane) acked(o *outgoing, reason byte, err error) {
	if err != nil {
		l.mu.Lock()
		o.lost = true
		l.mu.Unlock()
		return
	}
	l.acknowledge(o)
	if o.event != nil {
		l.front.notified(o, reason)
	}
}

// acknowledge lets go of an output.
func (l *lane) acknowledge(o *outgoing) {
	l.mu.Lock()
	o.acked = true
	for len(l.flight) > 0 && l.flight[0].acked {
		l.flight[0] = nil
		l.flight = l.flight[1:]
	}
	if len(l.flight) == 0 {
		l.poke()
	}
	l.mu.Unlock()
	l.front.published(o)
}

// requeue puts what was in flight on a connection that has ended before the rest of the queue, in order. When the connection's end is blamed on
// what was in flight, an output that was lost too often is abandoned, with all replies to the same culprit. It reports whether there was one.
func (l *lane) requeue(blamed bool) bool {
	var again, abandoned []*outgoing
	l.mu.Lock()
	for _, o := range l.flight {
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
	l.flight = nil
	l.queue = append(again, l.queue...)
	for _, offender := range abandoned {
		if offender.request != nil {
			l.queue = slices.DeleteFunc(l.queue, func(o *outgoing) bool {
				same := o.request != nil && l.front.culprit(o.request) == l.front.culprit(offender.request)
				if same {
					abandoned = append(abandoned, o)
				}
				return same
			})
		}
	}
	l.notifications, l.bytes = nil, 0
	for _, o := range l.queue {
		if o.event != nil && !o.givenUp {
			l.notifications = append(l.notifications, o)
			l.bytes += o.size()
		}
	}
	l.mu.Unlock()
	for _, o := range abandoned {
		l.front.abandon(o)
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
