package leader

import (
	"time"

	"holdfast/mqttfront/wire"
)

// Request is a message on its way from the invoke topic to its reply.
type Request struct {
	wire.Request
	Arrived     time.Time // when it was taken from the connection
	HoldUntil   time.Time // when it expires, unless its message expires earlier
	Done        func()    // acknowledges the message to the broker
	Redelivered bool      // the DUP flag: the broker may have sent it before

	leadership uint64 // the number of the Leader that has it

	// The fields below are guarded by Leader.mu.
	state    state
	began    time.Time // when the store got it
	proposed bool      // counts in Leader.proposals
	weight   int       // as how many operations it counts in its client's share
	scan     scanStage
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
	return !now.Before(r.HoldUntil) || !r.Deadline.IsZero() && !now.Before(r.Deadline)
}

// isInvalid reports whether the message alone decides that the answer is an error. The answer needs no log.
func (r *Request) isInvalid() bool { return r.UnsupportedVersion != "" || r.Command.Kind == 0 }

// isWrite reports whether the request is a valid write: executing it needs an entry in the log. A read may get an entry all
// the same, to keep its place behind a write.
func (r *Request) isWrite() bool { return !r.Read && !r.isInvalid() }

// isRemembered reports whether the dedup table keeps the outcome of the request, also if that is a refusal.
func (r *Request) isRemembered() bool { return r.isWrite() && !r.Command.ID.IsZero() }

// clientKey returns by which key the requests and replies of its client are kept in order and counted: the client id, else
// the response topic.
func (r *Request) clientKey() string {
	if id := r.Command.Principal.ClientID; id != "" {
		return id
	}
	return r.ResponseTopic
}

// leftWhenExpired is what brokers leave of the message expiry of a message that has expired in their queue.
const leftWhenExpired = time.Second

// isOfUnknownAge reports whether nothing bounds the age of a write: the broker delivers it again, so it may precede every
// probe, and its message expiry does not say that it is young. Then the dedup table may have forgotten its outcome. Such
// a write is answered if its outcome is known, and is not executed otherwise.
func (r *Request) isOfUnknownAge() bool {
	return r.Redelivered && r.isRemembered() && r.Deadline.Sub(r.Arrived) <= leftWhenExpired
}
