package pending

import "time"

// State is where a request of this node stands. The documentation of the package has the transitions.
type State uint8

const (
	// StatePending: no outcome is known. The node executes the request when it leads.
	StatePending State = iota
	// StateOutcomeKnown: the log has the outcome. The node keeps the request until the reply is known to be published.
	StateOutcomeKnown
	// StateDuplicate: the request was found to have an outcome already. It must not be executed: if the dedup table has forgotten the
	// outcome, the request would take effect twice.
	StateDuplicate
	// StateLate: a leader found that the request must not have an effect any more, and its refusal is not known to be in the log.
	StateLate
	// StateExecuting: the request was proposed to the log, and its result is not known yet.
	StateExecuting
	// StateShedding: a command that refuses the request because of overload was proposed to the log.
	StateShedding
	// StateRetrieving: a command that refuses a duplicate was proposed to the log. If the dedup table still has the outcome, the
	// command returns it, and it is the reply. Otherwise the duplicate is not answered.
	StateRetrieving
	// StateRejecting: a command that refuses a request that must not have an effect any more was proposed to the log. If the
	// dedup table has an outcome of the request, that is the reply. Otherwise the request is not answered.
	StateRejecting
	// StateDelivering: the reply is on its way to the broker.
	StateDelivering
	// StateDone: the node does not have the request any more.
	StateDone
)

// IsHeld reports whether the request waits at this node.
func (s State) IsHeld() bool { return s <= StateLate }

// State returns where the request stands.
func (r *Request) State() State { return r.state }

// OutcomeIndex returns the index of the log entry with the outcome, 0 while that is not known.
func (r *Request) OutcomeIndex() uint64 { return r.outcomeIndex }

// IsDuplicate reports whether the request was found to have an outcome already.
func (r *Request) IsDuplicate() bool { return r.state == StateDuplicate || r.state == StateRetrieving }

// IsOpen reports whether the request may still be executed, as far as this node knows: it has no outcome, and is neither a duplicate nor late.
func (r *Request) IsOpen() bool {
	return r.outcomeIndex == 0 && !r.IsDuplicate() && r.state != StateLate && r.state != StateRejecting
}

// MarkDuplicate notes that the request was found to have an outcome already.
func (r *Request) MarkDuplicate() {
	switch r.state {
	case StatePending, StateOutcomeKnown, StateLate:
		r.state = StateDuplicate
	case StateExecuting, StateShedding, StateRejecting:
		r.state = StateRetrieving
	}
}

// MarkLate notes that a pending request must not have an effect any more.
func (r *Request) MarkLate() {
	if r.state == StatePending {
		r.state = StateLate
	}
}

// MarkExecuting notes that the store has the request.
func (r *Request) MarkExecuting(now time.Time) { r.state, r.Began = StateExecuting, now }

// MarkShedding notes that the store has the refusal of the request as overload.
func (r *Request) MarkShedding(now time.Time) { r.state, r.Began = StateShedding, now }

// MarkRejecting notes that the store has the refusal of a request that must not have an effect any more. For a duplicate the state is StateRetrieving.
func (r *Request) MarkRejecting(now time.Time) {
	if r.Began = now; r.state == StateDuplicate {
		r.state = StateRetrieving
		return
	}
	r.state = StateRejecting
}

// MarkClientRetried notes that the client sent the request again after its outcome was decided, while the node still waited for the result. The outcome is
// retrieved once more.
func (r *Request) MarkClientRetried() { r.state, r.outcomeIndex = StateRetrieving, 0 }

// MarkDelivering notes that the reply is on its way to the broker. index is that of the log entry with the outcome, 0 for what is not in the log.
func (r *Request) MarkDelivering(index uint64, now time.Time) {
	r.state = StateDelivering
	if !r.Read {
		r.outcomeIndex = index
	}
	if r.Began.IsZero() {
		r.Began = now
	}
}

// AwaitsReport reports whether only the leader's report releases the request.
func (r *Request) AwaitsReport() bool { return r.awaitsReport }

// MarkAwaitingReport makes the request wait for the present leader's report that it was answered: the former leader, which executed it, reports no more.
func (r *Request) MarkAwaitingReport() { r.awaitsReport = true }

// SetOutcomeIndex sets the index of the log entry that has the outcome; 0 means that it is not known.
func (r *Request) SetOutcomeIndex(index uint64) {
	if r.outcomeIndex = index; index != 0 && (r.state == StatePending || r.state == StateLate) {
		r.state = StateOutcomeKnown
	}
}

// MarkHeld makes the request wait at this node again.
func (r *Request) MarkHeld() {
	switch {
	case r.state == StateRetrieving:
		r.state = StateDuplicate
	case r.outcomeIndex != 0:
		r.state = StateOutcomeKnown
	case r.state == StateRejecting:
		r.state = StateLate
	default:
		r.state = StatePending
	}
}
