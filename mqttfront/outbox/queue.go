package outbox

import (
	"slices"
	"sync"

	"holdfast/mqttfront/wire"
)

// When the broker probably ended a connection because of an output (connection.brokerEnded), each
// output that was in flight on it counts one loss. After soloAfter losses an output is sent alone.
// After abandonAfter losses it is dropped, and counts as published. Otherwise a reply for which the
// broker ends connections would block the outputs behind it. One loss is no proof, even if the
// output was alone in flight: something between node and broker may have ended the connection.
const (
	soloAfter    = 1
	abandonAfter = 2
)

// queue has the outputs that leave by one publishing connection, in order: first those in flight,
// then those that wait. It outlives connections. All methods are safe for concurrent use.
type queue struct {
	maxNotifications int
	// bounds the total size of the keys and values of waiting notifications
	maxBytes int
	// identifies the client of a request: replies to one client are abandoned together
	penaltyKey func(*wire.Request) string
	// capacity 1; an element says that there may be something to send
	wake chan struct{}

	mu            sync.Mutex
	waiting       []*Output
	inFlight      []*Output // sent, in order; the first is not acknowledged, later ones may be
	notifications []*Output // in waiting, in order
	bytes         int       // total size of the keys and values of notifications
	// droppedInWaiting counts the outputs that were dropped for lack of room and are still in
	// waiting.
	droppedInWaiting int
}

func newQueue(maxNotifications, maxBytes int, penaltyKey func(*wire.Request) string) *queue {
	return &queue{
		maxNotifications: maxNotifications, maxBytes: maxBytes, penaltyKey: penaltyKey,
		wake: make(chan struct{}, 1),
	}
}

// push queues an output. Replies are bounded by the requests that are admitted. Notifications are
// bounded here: push drops and returns the oldest ones until the others are within maxNotifications
// and maxBytes. The newest one stays, whatever its size. Those that are dropped have no Event any
// more.
func (q *queue) push(o *Output) (dropped []*Output) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, o)
	if o.Event != nil {
		q.notifications = append(q.notifications, o)
		q.bytes += o.size()
		for len(q.notifications) > q.maxNotifications || len(q.notifications) > 1 &&
			q.bytes > q.maxBytes {
			oldest := q.notifications[0]
			oldest.dropped = true // next passes it over
			q.bytes -= oldest.size()
			oldest.Event, oldest.Receiver = nil, nil // it stays in waiting for a while
			q.notifications = q.notifications[1:]
			dropped = append(dropped, oldest)
			q.droppedInWaiting++
		}
		if q.droppedInWaiting > len(q.waiting)/2 {
			q.waiting = slices.DeleteFunc(q.waiting, func(o *Output) bool { return o.dropped })
			q.droppedInWaiting = 0
		}
	}
	q.signal()
	return dropped
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next takes the next output and puts it in flight. wait is true if none may be sent now: the queue
// is empty; or outputs are in flight, and the next output or the last one in flight must be in
// flight alone, because it has soloAfter losses.
func (q *queue) next() (o *Output, wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 && q.waiting[0].dropped {
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.droppedInWaiting--
	}
	if len(q.waiting) == 0 ||
		(len(q.inFlight) > 0 &&
			(q.waiting[0].blamedLosses >= soloAfter ||
				q.inFlight[len(q.inFlight)-1].blamedLosses >= soloAfter)) {
		return nil, true
	}
	o = q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	if o.Event != nil { // it is notifications[0]
		q.notifications = q.notifications[1:]
		q.bytes -= o.size()
	}
	q.inFlight = append(q.inFlight, o)
	return o, false
}

// finish removes an output that is in flight.
func (q *queue) finish(o *Output) {
	q.mu.Lock()
	defer q.mu.Unlock()
	o.finished = true
	for len(q.inFlight) > 0 && q.inFlight[0].finished {
		q.inFlight[0] = nil
		q.inFlight = q.inFlight[1:]
	}
	if len(q.inFlight) == 0 {
		q.signal()
	}
}

// markLost notes that the connection ended before the broker acknowledged an output that was sent.
func (q *queue) markLost(o *Output) {
	q.mu.Lock()
	defer q.mu.Unlock()
	o.lost = true
}

// requeue moves the outputs in flight on the ended connection back to the front of the queue, in
// order. When the connection's end is blamed on what was in flight, it removes each output with
// abandonAfter losses, and all replies with the same penalty key. It returns what it removed.
func (q *queue) requeue(blamed bool) (abandoned []*Output) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var again []*Output
	for _, o := range q.inFlight {
		if o.lost && blamed {
			o.blamedLosses++
		}
		switch {
		case o.finished:
		case o.blamedLosses >= abandonAfter:
			abandoned = append(abandoned, o)
		default:
			again = append(again, o)
		}
		o.lost = false
	}
	q.inFlight = nil
	q.waiting = append(again, q.waiting...)
	for _, misbehaving := range abandoned {
		if misbehaving.Request != nil {
			q.waiting = slices.DeleteFunc(q.waiting, func(o *Output) bool {
				same := o.Request != nil &&
					q.penaltyKey(o.Request) == q.penaltyKey(misbehaving.Request)
				if same {
					abandoned = append(abandoned, o)
				}
				return same
			})
		}
	}
	q.notifications, q.bytes = nil, 0
	for _, o := range q.waiting {
		if o.Event != nil && !o.dropped {
			q.notifications = append(q.notifications, o)
			q.bytes += o.size()
		}
	}
	return abandoned
}
