package mqttfront

// requestState is where a request of this node stands. The documentation of pending has the transitions.
type requestState uint8

const (
	// statePending: no outcome is known. The node executes the request when it leads.
	statePending requestState = iota
	// stateCommitted: the log has the outcome. The node keeps the request until the reply is known to be published.
	stateCommitted
	// stateCopy: the request is a copy of one that has an outcome, which may be forgotten by the time it is executed. It must not have an effect.
	stateCopy
	// stateLate: a leader found that the request must not have an effect any more, and could not put that into the log.
	stateLate
	// stateExecuting: the store has the request.
	stateExecuting
	// stateRefusing: the store has the refusal of the request as overload.
	stateRefusing
	// stateRepeating: the store has the refusal of a copy. The copy is answered only if the log knows its outcome.
	stateRepeating
	// stateBarring: the store has the refusal of a request that must not have an effect any more. It is answered only if it had an outcome before.
	stateBarring
	// stateDelivering: the reply is on its way to the broker.
	stateDelivering
	// stateDone: the node does not have the request any more.
	stateDone
)

// isHeld reports whether the request waits at this node.
func (s requestState) isHeld() bool { return s <= stateLate }

// isCopy reports whether the request is known to be a copy of one that has an outcome.
func (r *request) isCopy() bool { return r.state == stateCopy || r.state == stateRepeating }

// isOpen reports whether nothing is known that keeps the request from being executed.
func (r *request) isOpen() bool {
	return r.outcome == 0 && !r.isCopy() && r.state != stateLate && r.state != stateBarring
}

// markCopy notes that the request is a copy of one that has an outcome.
func (r *request) markCopy() {
	switch r.state {
	case statePending, stateCommitted, stateLate:
		r.state = stateCopy
	case stateExecuting, stateRefusing, stateBarring:
		r.state = stateRepeating
	}
}

// commit notes the index of the log entry that has the outcome, if it is known: it is not 0.
func (r *request) commit(index uint64) {
	if r.outcome = index; index != 0 && (r.state == statePending || r.state == stateLate) {
		r.state = stateCommitted
	}
}

// hold makes the request wait at this node again.
func (r *request) hold() {
	switch {
	case r.state == stateRepeating:
		r.state = stateCopy
	case r.outcome != 0:
		r.state = stateCommitted
	case r.state == stateBarring:
		r.state = stateLate
	default:
		r.state = statePending
	}
}
