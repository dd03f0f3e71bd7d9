package pending

import (
	"container/list"
	"time"

	"holdfast/mqttfront/wire"
)

// Request is a message on its way from the invoke topic to its reply.
type Request struct {
	wire.Request
	Arrived time.Time // when it was taken from the connection
	// Sent is the later, the later this copy was sent: its own deadline, or its arrival. Other copies that it absorbs leave it alone.
	Sent        time.Time
	HoldUntil   time.Time // when it is given up unanswered
	Done        func()    // acknowledges the message to the broker
	Redelivered bool      // the broker has sent it before
	Backlog     bool      // it came when its session delivered what is no news to other nodes
	Elsewhere   bool      // this copy was received by another node, and taken from there
	// SecondHand is set if that node did not receive the request either: its place in that node's list says nothing.
	SecondHand bool

	// The fields below are guarded by the lock of the Buffer.
	state    State
	element  *list.Element // in Buffer.order
	Began    time.Time     // when it went into the hands of the store
	writing  bool          // counts in Buffer.writing
	Sequence uint64        // grows with the place in Buffer.order
	client   string        // the key of its client, where that is known to be another than the request says
	outcome  uint64        // index of the log entry with its outcome; 0 while that is not known
}

// Expired reports whether the client does not wait for the answer any more.
func (r *Request) Expired(now time.Time) bool {
	return !now.Before(r.HoldUntil) || r.MessageExpired(now)
}

// orderMemory is how long an open request is kept after it has expired, to say where others stand. The copy of another node may expire later: it was on
// its way for longer, as in the socket of a process that was stopped, and brokers count what is left of a message's expiry in whole seconds.
const orderMemory = maxLag + 1500*time.Millisecond

// Forgettable reports whether the request is no use any more: no client waits for it, and it need not say where others stand.
func (r *Request) Forgettable(now time.Time) bool {
	if r.IsOpen() && !r.Command.ID.IsZero() {
		return !now.Before(r.HoldUntil.Add(orderMemory))
	}
	return !now.Before(r.HoldUntil)
}

// MessageExpired reports whether the message has expired.
func (r *Request) MessageExpired(now time.Time) bool {
	return !r.Deadline.IsZero() && !now.Before(r.Deadline)
}

// AnswerKnown reports whether the answer is an error that follows from the message alone: it needs no log.
func (r *Request) AnswerKnown() bool { return r.UnsupportedVersion != "" || r.Command.Kind == 0 }

// NeedsLogEntry reports whether executing the request needs an entry in the log.
func (r *Request) NeedsLogEntry() bool { return !r.Read && !r.AnswerKnown() }

// IsDeduplicated reports whether the outcome of the request is remembered, so that the log can say that it must not have an effect.
func (r *Request) IsDeduplicated() bool { return r.NeedsLogEntry() && !r.Command.ID.IsZero() }

// Absorb makes one copy of a request stand for another as well: for as long as either is worth an answer.
func (r *Request) Absorb(other *Request) {
	if !r.Deadline.IsZero() && (other.Deadline.IsZero() || other.Deadline.After(r.Deadline)) {
		r.Deadline = other.Deadline
	}
	if other.HoldUntil.After(r.HoldUntil) {
		r.HoldUntil = other.HoldUntil
	}
	r.Command.Lifetime = max(r.Command.Lifetime, other.Command.Lifetime)
	if other.IsCopy() {
		r.MarkCopy()
	}
	if r.outcome == 0 {
		r.Commit(other.outcome)
	}
}

// ClientKey returns the key by which what one client receives is kept in order.
func (r *Request) ClientKey() string {
	if r.client != "" {
		return r.client
	}
	if id := r.Command.Principal.ClientID; id != "" {
		return id
	}
	return r.ResponseTopic
}
