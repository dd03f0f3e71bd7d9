package pending

import "testing"

// Each operation moves a request only as the documentation of pending says.
func TestRequestStates(t *testing.T) {
	const unknown, index = 0, 7
	for _, test := range []struct {
		name    string
		from    State
		outcome uint64
		do      func(*Request)
		to      State
		open    bool
	}{
		{"a pending request is a copy", StatePending, unknown, (*Request).MarkCopy, StateCopy, false},
		{"a committed request is found in the state", StateCommitted, index, (*Request).MarkCopy, StateCopy, false},
		{"a late request is a copy", StateLate, unknown, (*Request).MarkCopy, StateCopy, false},
		{"a request in the store is a copy when it comes back", StateExecuting, unknown, (*Request).MarkCopy, StateRepeating, false},
		{"a refused request is a copy when it comes back", StateRefusing, unknown, (*Request).MarkCopy, StateRepeating, false},
		{"a reply on its way is not stopped", StateDelivering, index, (*Request).MarkCopy, StateDelivering, false},
		{"the log has the outcome of a pending request", StatePending, unknown, func(r *Request) { r.Commit(index) }, StateCommitted, false},
		{"the log has the outcome of a late request", StateLate, unknown, func(r *Request) { r.Commit(index) }, StateCommitted, false},
		{"the log has the outcome of a copy", StateCopy, unknown, func(r *Request) { r.Commit(index) }, StateCopy, false},
		{"the log has the outcome of a request in the store", StateExecuting, unknown, func(r *Request) { r.Commit(index) }, StateExecuting, false},
		{"no outcome is known", StatePending, unknown, func(r *Request) { r.Commit(unknown) }, StatePending, true},
		{"the store gives a request back", StateExecuting, unknown, (*Request).Hold, StatePending, true},
		{"the store gives a request back that has an outcome", StateExecuting, index, (*Request).Hold, StateCommitted, false},
		{"the store gives a refusal back", StateRefusing, unknown, (*Request).Hold, StatePending, true},
		{"the store gives a copy back", StateRepeating, unknown, (*Request).Hold, StateCopy, false},
		{"the store gives a barred request back", StateBarring, unknown, (*Request).Hold, StateLate, false},
		{"the store gives a barred request back that has an outcome", StateBarring, index, (*Request).Hold, StateCommitted, false},
		{"the leadership ends before the broker has the reply", StateDelivering, index, (*Request).Hold, StateCommitted, false},
		{"the leadership ends before the broker has the value that was read", StateDelivering, unknown, (*Request).Hold, StatePending, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &Request{State: test.from, Outcome: test.outcome}
			test.do(r)
			if r.State != test.to || r.IsOpen() != test.open {
				t.Errorf("state %d, open %v; want %d, %v", r.State, r.IsOpen(), test.to, test.open)
			}
		})
	}
}

// A request hands on what is known of it to the one that stays.
func TestAbsorbKeepsWhatIsKnown(t *testing.T) {
	for _, test := range []struct {
		name        string
		kept, other State
		outcome     uint64 // of the other copy
		to          State
	}{
		{"two open requests", StatePending, StatePending, 0, StatePending},
		{"a known copy", StatePending, StateCopy, 0, StateCopy},
		{"a known copy whose refusal is under way", StatePending, StateRepeating, 0, StateCopy},
		{"a late request, whose refusal is not in the log", StatePending, StateLate, 0, StatePending},
		{"a request with an outcome", StatePending, StateCommitted, 7, StateCommitted},
		{"a known copy, of a request in the store", StateExecuting, StateCopy, 0, StateRepeating},
	} {
		t.Run(test.name, func(t *testing.T) {
			kept := &Request{State: test.kept}
			kept.Absorb(&Request{State: test.other, Outcome: test.outcome})
			if kept.State != test.to || kept.Outcome != test.outcome {
				t.Errorf("state %d, outcome %d; want %d, %d", kept.State, kept.Outcome, test.to, test.outcome)
			}
		})
	}
}
