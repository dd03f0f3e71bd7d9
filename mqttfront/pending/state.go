package pending

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

// IsCopy reports whether the request is known to be a copy of one that has an outcome.
func (r *Request) IsCopy() bool { return r.State == StateCopy || r.State == StateRepeating }

// IsOpen reports whether nothing is known that keeps the request from being executed.
func (r *Request) IsOpen() bool {
	return r.Outcome == 0 && !r.IsCopy() && r.State != StateLate && r.State != StateBarring
}

// MarkCopy notes that the request is a copy of one that has an outcome.
func (r *Request) MarkCopy() {
	switch r.State {
	case StatePending, StateCommitted, StateLate:
		r.State = StateCopy
	case StateExecuting, StateRefusing, StateBarring:
		r.State = StateRepeating
	}
}

// Commit notes the index of the log entry that has the outcome, if it is known: it is not 0.
func (r *Request) Commit(index uint64) {
	if r.Outcome = index; index != 0 && (r.State == StatePending || r.State == StateLate) {
		r.State = StateCommitted
	}
}

// Hold makes the request wait at this node again.
func (r *Request) Hold() {
	switch {
	case r.State == StateRepeating:
		r.State = StateCopy
	case r.Outcome != 0:
		r.State = StateCommitted
	case r.State == StateBarring:
		r.State = StateLate
	default:
		r.State = StatePending
	}
}
