package leader

import (
	"time"

	"holdfast/mqttfront/wire"
)

// Request is a message on its way from the invoke topic to its reply.
type Request struct {
	wire.Request
	Arrived time.Time // when it was taken from the connection
	// ReceivedAfter is a moment after which the broker received it, and SentAfter one after which
	// the broker sent it. They may be long before.
	ReceivedAfter, SentAfter time.Time

	Expires     time.Time // when it expires, unless its message expires earlier
	Done        func()    // acknowledges the message to the broker
	Redelivered bool      // the DUP flag: the broker may have sent it before

	leadership uint64 // the number of the Leader that has it

	// The fields below are guarded by Leader.mu.
	state    state
	began    time.Time // when the store got it
	proposed bool      // counts in Leader.proposals
	weight   int       // as how many operations it counts in its client's share
	scan     scanStage
	// queued is when the reply was queued. earlier and later are its neighbours in
	// Leader.delivering.
	queued         time.Time
	earlier, later *Request
}

// requests is a list of requests, in the order of adding. The zero value is empty.
type requests struct{ first, last *Request }

func (l *requests) add(r *Request) {
	r.earlier, r.later = l.last, nil
	if l.last == nil {
		l.first = r
	} else {
		l.last.later = r
	}
	l.last = r
}

// remove removes a request that is in the list.
func (l *requests) remove(r *Request) {
	if r.earlier == nil {
		l.first = r.later
	} else {
		r.earlier.later = r.later
	}
	if r.later == nil {
		l.last = r.earlier
	} else {
		r.later.earlier = r.earlier
	}
	r.earlier, r.later = nil, nil
}

// state is where a request stands. The documentation of the package explains the states.
type state uint8

const (
	stateArrived state = iota
	stateExecuting
	stateShedding
	stateRefusing
	stateDelivering
	stateDone
)

// scanStage says how a SCAN counts in the limits on SCANs.
type scanStage uint8

const (
	scanNone       scanStage = iota // not a SCAN, or a SCAN that is not under way
	scanReading                     // the store executes it
	scanDelivering                  // its page is being sent to the broker
)

// expired reports whether the client has stopped waiting for the answer.
func (r *Request) expired(now time.Time) bool {
	return !now.Before(r.Expires) || !r.Deadline.IsZero() && !now.Before(r.Deadline)
}

// isInvalid reports whether the message alone decides that the answer is an error. The answer needs
// no log.
func (r *Request) isInvalid() bool { return r.UnsupportedVersion != "" || r.Command.Kind == 0 }

// isWrite reports whether the request is a valid write: executing it needs an entry in the log. A
// read may get an entry all the same, to keep its place behind a write.
func (r *Request) isWrite() bool { return !r.Read && !r.isInvalid() }

// isRemembered reports whether the dedup table keeps the outcome of the request, also if that is a
// refusal.
func (r *Request) isRemembered() bool { return r.isWrite() && !r.Command.ID.IsZero() }

// clientKey returns by which key the requests and replies of its client are kept in order and
// counted: the client id, else the response topic.
func (r *Request) clientKey() string {
	if id := r.Command.Principal.ClientID; id != "" {
		return id
	}
	return r.ResponseTopic
}

// leftWhenExpired is what brokers leave of the message expiry of a message that has expired in
// their queue.
const leftWhenExpired = time.Second

// mayBeForgotten reports whether the dedup table may have forgotten an outcome of a write with an
// identity, because the broker may have received the write so long ago. Such a write is answered if
// its outcome is known, and is not executed otherwise. A message expiry that is not over shows that
// the write is younger than its own lifetime, up to Config.MaxUnexpiredAge. What was left of it
// when the broker sent the write may be over: this node may have been stopped before it read.
func (r *Request) mayBeForgotten(config *Config) bool {
	age, waited := r.Arrived.Sub(r.ReceivedAfter), r.Arrived.Sub(r.SentAfter)
	young := age <= config.MaxAge || age <= config.MaxUnexpiredAge &&
		!r.Deadline.IsZero() && r.Deadline.Sub(r.Arrived)-waited > leftWhenExpired
	return r.isRemembered() && !young
}
