package pending

import "time"

// State is where a request of this node stands. The documentation of the package has the transitions.
type State uint8

const (
	// StatePending: no outcome is known. The node executes the request when it leads.
	StatePending State = iota
	// StateCommitted: the log has the outcome. The node keeps the request until the reply is known to be published.
	StateCommitted
	// StateCopy: the request is a copy of one that has an outcome, which may be forgotten by the time it is executed. It must not have an effect.
	StateCopy
	// StateLate: a leader found that the request must not have an effect any more, and could not put that into the log.
	StateLate
	// StateExecuting: the store has the request.
	StateExecuting
	// StateRefusing: the store has the refusal of the request as overload.
	StateRefusing
	// StateRepeating: the store has the refusal of a copy. The copy is answered only if the log knows its outcome.
	StateRepeating
	// StateBarring: the store has the refusal of a request that must not have an effect any more. It is answered only if it had an outcome before.
	StateBarring
	// StateDelivering: the reply is on its way to the broker.
	StateDelivering
	// StateDone: the node does not have the request any more.
	StateDone
)

// IsHeld reports whether the request waits at this node.
func (s State) IsHeld() bool { return s <= StateLate }

// State returns where the request stands.
func (r *Request) State() State { return r.state }

// Outcome returns the index of the log entry with the outcome, 0 while that is not known.
func (r *Request) Outcome() uint64 { return r.outcome }

// IsCopy reports whether the request is known to be a copy of one that has an outcome.
func (r *Request) IsCopy() bool { return r.state == StateCopy || r.state == StateRepeating }

// IsOpen reports whether nothing is known that keeps the request from being executed.
func (r *Request) IsOpen() bool {
	return r.outcome == 0 && !r.IsCopy() && r.state != StateLate && r.state != StateBarring
}

// MarkCopy notes that the request is a copy of one that has an outcome.
func (r *Request) MarkCopy() {
	switch r.state {
	case StatePending, StateCommitted, StateLate:
		r.state = StateCopy
	case StateExecuting, StateRefusing, StateBarring:
		r.state = StateRepeating
	}
}

// MarkLate notes that a pending request must not have an effect any more.
func (r *Request) MarkLate() {
	if r.state == StatePending {
		r.state = StateLate
	}
}

// Execute notes that the store executes the request from now on.
func (r *Request) Execute(now time.Time) { r.state, r.Began = StateExecuting, now }

// Refuse notes that the store refuses the request as overload from now on.
func (r *Request) Refuse(now time.Time) { r.state, r.Began = StateRefusing, now }

// Bar notes that the store refuses, from now on, a request that must not have an effect any more.
func (r *Request) Bar(now time.Time) {
	if r.Began = now; r.state == StateCopy {
		r.state = StateRepeating
		return
	}
	r.state = StateBarring
}

// AskAgain notes that the client of a request in the store sent it again after the outcome: the store is to be asked for that once more.
func (r *Request) AskAgain() { r.state, r.outcome = StateRepeating, 0 }

// Deliver notes that the reply is on its way to the broker. index is that of the log entry with the outcome, 0 for what is not in the log.
func (r *Request) Deliver(index uint64, now time.Time) {
	r.state = StateDelivering
	if !r.Read {
		r.outcome = index
	}
	if r.Began.IsZero() {
		r.Began = now
	}
}

// Commit notes the index of the log entry that has the outcome, if it is known: it is not 0.
func (r *Request) Commit(index uint64) {
	if r.outcome = index; index != 0 && (r.state == StatePending || r.state == StateLate) {
		r.state = StateCommitted
	}
}

// Hold makes the request wait at this node again.
func (r *Request) Hold() {
	switch {
	case r.state == StateRepeating:
		r.state = StateCopy
	case r.outcome != 0:
		r.state = StateCommitted
	case r.state == StateBarring:
		r.state = StateLate
	default:
		r.state = StatePending
	}
}
