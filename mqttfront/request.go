package mqttfront

import (
	"container/list"
	"time"

	"holdfast/mqttfront/wire"
)

// request is a message on its way from the invoke topic to its reply.
type request struct {
	wire.Request
	arrived time.Time // when it was taken from the connection
	// sent is the later, the later this copy was sent: its own deadline, or its arrival. Other copies that it absorbs leave it alone.
	sent        time.Time
	holdUntil   time.Time // when it is given up unanswered
	done        func()    // acknowledges the message to the broker
	redelivered bool      // the broker has sent it before
	backlog     bool      // it came when its session delivered what is no news to other nodes
	elsewhere   bool      // this copy was received by another node, and taken from there
	// secondHand is set if that node did not receive the request either: its place in that node's list says nothing.
	secondHand bool

	// The fields below are guarded by Front.mu.
	state    requestState
	element  *list.Element // in pending.order
	began    time.Time     // when it went into the hands of the store
	writing  bool          // counts in Front.writing
	sequence uint64        // grows with the place in pending.order
	client   string        // the key of its client, where that is known to be another than the request says
	outcome  uint64        // index of the log entry with its outcome; 0 while that is not known
}

// expired reports whether the client does not wait for the answer any more.
func (r *request) expired(now time.Time) bool {
	return !now.Before(r.holdUntil) || r.messageExpired(now)
}

// messageExpired reports whether the message has messageExpired.
func (r *request) messageExpired(now time.Time) bool {
	return !r.Deadline.IsZero() && !now.Before(r.Deadline)
}

// answerKnown reports whether the answer is an error that follows from the message alone: it needs no log.
func (r *request) answerKnown() bool { return r.UnsupportedVersion != "" || r.Command.Kind == 0 }

// logged reports whether executing the request needs an entry in the log.
func (r *request) logged() bool { return !r.Read && !r.answerKnown() }

// inTable reports whether the outcome of the request is remembered, so that the log can say that it must not have an effect.
func (r *request) inTable() bool { return r.logged() && !r.Command.ID.IsZero() }

// absorb makes one copy of a request stand for another as well: for as long as either is worth an answer.
func (r *request) absorb(other *request) {
	if !r.Deadline.IsZero() && (other.Deadline.IsZero() || other.Deadline.After(r.Deadline)) {
		r.Deadline = other.Deadline
	}
	if other.holdUntil.After(r.holdUntil) {
		r.holdUntil = other.holdUntil
	}
	r.Command.Lifetime = max(r.Command.Lifetime, other.Command.Lifetime)
	if other.isCopy() {
		r.markCopy()
	}
	if r.outcome == 0 {
		r.commit(other.outcome)
	}
}

// ordering returns the key by which what one client receives is kept in order.
func (r *request) ordering() string {
	if r.client != "" {
		return r.client
	}
	if id := r.Command.Principal.ClientID; id != "" {
		return id
	}
	return r.ResponseTopic
}
