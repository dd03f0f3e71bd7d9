package pending

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Each operation moves a request only as the documentation of pending says.
func TestRequestsMoveOnlyAsDocumented(t *testing.T) {
	const unknown, index = 0, 7
	for _, test := range []struct {
		name    string
		from    State
		outcome uint64
		do      func(*Request)
		to      State
		open    bool
	}{
		{"a pending request has an outcome", StatePending, unknown, (*Request).MarkDuplicate, StateDuplicate, false},
		{"a request with a known outcome is found in the state", StateOutcomeKnown, index, (*Request).MarkDuplicate, StateDuplicate, false},
		{"a late request has an outcome", StateLate, unknown, (*Request).MarkDuplicate, StateDuplicate, false},
		{"a request in the store has an outcome", StateExecuting, unknown, (*Request).MarkDuplicate, StateRetrieving, false},
		{"a request that is being shed has an outcome", StateShedding, unknown, (*Request).MarkDuplicate, StateRetrieving, false},
		{"a reply on its way is not stopped", StateDelivering, index, (*Request).MarkDuplicate, StateDelivering, false},
		{"the log has the outcome of a pending request", StatePending, unknown, func(r *Request) { r.SetOutcomeIndex(index) }, StateOutcomeKnown, false},
		{"the log has the outcome of a late request", StateLate, unknown, func(r *Request) { r.SetOutcomeIndex(index) }, StateOutcomeKnown, false},
		{"the log has the outcome of a duplicate", StateDuplicate, unknown, func(r *Request) { r.SetOutcomeIndex(index) }, StateDuplicate, false},
		{"the log has the outcome of a request in the store", StateExecuting, unknown, func(r *Request) { r.SetOutcomeIndex(index) }, StateExecuting, false},
		{"a pending request comes too late", StatePending, unknown, (*Request).MarkLate, StateLate, false},
		{"a duplicate that is late stays a duplicate", StateDuplicate, unknown, (*Request).MarkLate, StateDuplicate, false},
		{"the leader executes a pending request", StatePending, unknown, func(r *Request) { r.MarkExecuting(time.Time{}) }, StateExecuting, true},
		{"the leader sheds a pending request", StatePending, unknown, func(r *Request) { r.MarkShedding(time.Time{}) }, StateShedding, true},
		{"the leader rejects a late request", StateLate, unknown, func(r *Request) { r.MarkRejecting(time.Time{}) }, StateRejecting, false},
		{"the leader rejects a request with a known outcome", StateOutcomeKnown, index, func(r *Request) { r.MarkRejecting(time.Time{}) }, StateRejecting, false},
		{"the leader retrieves the outcome of a duplicate", StateDuplicate, unknown, func(r *Request) { r.MarkRejecting(time.Time{}) }, StateRetrieving, false},
		{"a client asks again for what the store has", StateExecuting, index, (*Request).MarkClientRetried, StateRetrieving, false},
		{"the reply is on its way", StateExecuting, unknown, func(r *Request) { r.MarkDelivering(index, time.Time{}) }, StateDelivering, false},
		{"no outcome is known", StatePending, unknown, func(r *Request) { r.SetOutcomeIndex(unknown) }, StatePending, true},
		{"the store gives a request back", StateExecuting, unknown, (*Request).MarkHeld, StatePending, true},
		{"the store gives a request back that has an outcome", StateExecuting, index, (*Request).MarkHeld, StateOutcomeKnown, false},
		{"the store gives a refusal back", StateShedding, unknown, (*Request).MarkHeld, StatePending, true},
		{"the store returns a duplicate", StateRetrieving, unknown, (*Request).MarkHeld, StateDuplicate, false},
		{"the store returns a rejected request", StateRejecting, unknown, (*Request).MarkHeld, StateLate, false},
		{"the store returns a rejected request that has an outcome", StateRejecting, index, (*Request).MarkHeld, StateOutcomeKnown, false},
		{"the leadership ends before the broker has the reply", StateDelivering, index, (*Request).MarkHeld, StateOutcomeKnown, false},
		{"the leadership ends before the broker has the value that was read", StateDelivering, unknown, (*Request).MarkHeld, StatePending, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &Request{state: test.from, outcomeIndex: test.outcome}
			test.do(r)
			if r.state != test.to || r.IsOpen() != test.open {
				t.Errorf("state %d, open %v; want %d, %v", r.state, r.IsOpen(), test.to, test.open)
			}
		})
	}
}

// The copy that is kept absorbs what the other copy knows of an outcome.
func TestAbsorbKeepsWhatIsKnown(t *testing.T) {
	for _, test := range []struct {
		name        string
		kept, other State
		outcome     uint64 // of the other copy
		to          State
	}{
		{"two open requests", StatePending, StatePending, 0, StatePending},
		{"a known duplicate", StatePending, StateDuplicate, 0, StateDuplicate},
		{"a known duplicate whose outcome is being retrieved", StatePending, StateRetrieving, 0, StateDuplicate},
		{"a late request, whose refusal is not in the log", StatePending, StateLate, 0, StatePending},
		{"a request with an outcome", StatePending, StateOutcomeKnown, 7, StateOutcomeKnown},
		{"a known duplicate of a request in the store", StateExecuting, StateDuplicate, 0, StateRetrieving},
	} {
		t.Run(test.name, func(t *testing.T) {
			kept := &Request{state: test.kept}
			kept.Absorb(&Request{state: test.other, outcomeIndex: test.outcome})
			if kept.state != test.to || kept.outcomeIndex != test.outcome {
				t.Errorf("state %d, outcome %d; want %d, %d", kept.state, kept.outcomeIndex, test.to, test.outcome)
			}
		})
	}
}

// Random operations change the state of a request only as in the table in the documentation of the package, and every change in the table occurs.
// StateDone is left out: Buffer.Remove ends a request in any state.
func TestStatesMoveAlongTheTable(t *testing.T) {
	held := []State{StatePending, StateOutcomeKnown, StateDuplicate, StateLate}
	stored := []State{StateExecuting, StateShedding, StateRetrieving, StateRejecting}
	type move struct{ from, to State }
	allowed := make(map[move]int)
	for to, from := range map[State][]State{
		StateOutcomeKnown: {StatePending, StateLate, StateExecuting, StateShedding, StateRejecting, StateDelivering},
		StateDuplicate:    {StatePending, StateOutcomeKnown, StateLate, StateRetrieving},
		StateLate:         {StatePending, StateRejecting},
		StateExecuting:    {StatePending},
		StateShedding:     {StatePending},
		StateRetrieving:   {StateDuplicate, StateExecuting, StateShedding, StateRejecting},
		StateRejecting:    {StatePending, StateOutcomeKnown, StateLate},
		StateDelivering:   slices.Concat(held, stored),
		StatePending:      {StateExecuting, StateShedding, StateDelivering},
	} {
		for _, f := range from {
			allowed[move{f, to}] = 0
		}
	}
	random, now := rand.New(rand.NewPCG(1, 2)), time.Unix(1_700_000_000, 0)
	operations := []struct {
		name string
		from []State // the states in which a node calls it; nil means any
		do   func(*Request)
	}{
		{"MarkDuplicate", nil, (*Request).MarkDuplicate},
		{"MarkLate", nil, (*Request).MarkLate},
		{"SetOutcomeIndex", slices.Concat(held, stored), func(r *Request) { r.SetOutcomeIndex(uint64(random.IntN(2))) }},
		{"MarkExecuting", []State{StatePending}, func(r *Request) { r.MarkExecuting(now) }},
		{"MarkShedding", []State{StatePending}, func(r *Request) { r.MarkShedding(now) }},
		{"MarkRejecting", held, func(r *Request) { r.MarkRejecting(now) }},
		{"MarkClientRetried", stored, (*Request).MarkClientRetried},
		{"MarkDelivering", slices.Concat(held, stored), func(r *Request) { r.MarkDelivering(uint64(random.IntN(2)), now) }},
		{"MarkHeld", append(stored, StateDelivering), (*Request).MarkHeld},
	}
	for range 1000 {
		r := &Request{}
		r.Read = random.IntN(4) == 0
		for range 50 {
			o := operations[random.IntN(len(operations))]
			if o.from != nil && !slices.Contains(o.from, r.state) {
				continue
			}
			from := r.state
			if o.do(r); r.state == from {
				continue
			}
			if _, ok := allowed[move{from, r.state}]; !ok {
				t.Fatalf("%s moves a request from state %d to %d", o.name, from, r.state)
			}
			allowed[move{from, r.state}]++
		}
	}
	for m, times := range allowed {
		if times == 0 {
			t.Errorf("no request moves from state %d to %d", m.from, m.to)
		}
	}
}
