package pending

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

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
		{"a pending request comes too late", StatePending, unknown, (*Request).MarkLate, StateLate, false},
		{"a copy that comes too late is a copy", StateCopy, unknown, (*Request).MarkLate, StateCopy, false},
		{"the leader executes a pending request", StatePending, unknown, func(r *Request) { r.Execute(time.Time{}) }, StateExecuting, true},
		{"the leader refuses a pending request", StatePending, unknown, func(r *Request) { r.Refuse(time.Time{}) }, StateRefusing, true},
		{"the leader bars a late request", StateLate, unknown, func(r *Request) { r.Bar(time.Time{}) }, StateBarring, false},
		{"the leader bars a committed request", StateCommitted, index, func(r *Request) { r.Bar(time.Time{}) }, StateBarring, false},
		{"the leader bars a copy", StateCopy, unknown, func(r *Request) { r.Bar(time.Time{}) }, StateRepeating, false},
		{"a client asks again for what the store has", StateExecuting, index, (*Request).AskAgain, StateRepeating, false},
		{"the reply is on its way", StateExecuting, unknown, func(r *Request) { r.Deliver(index, time.Time{}) }, StateDelivering, false},
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
			r := &Request{state: test.from, outcome: test.outcome}
			test.do(r)
			if r.state != test.to || r.IsOpen() != test.open {
				t.Errorf("state %d, open %v; want %d, %v", r.state, r.IsOpen(), test.to, test.open)
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
			kept := &Request{state: test.kept}
			kept.Absorb(&Request{state: test.other, outcome: test.outcome})
			if kept.state != test.to || kept.outcome != test.outcome {
				t.Errorf("state %d, outcome %d; want %d, %d", kept.state, kept.outcome, test.to, test.outcome)
			}
		})
	}
}

// Whatever a node does with a request, it moves only along the table in the documentation of the package, and each line of the table happens.
func TestStatesMoveAlongTheTable(t *testing.T) {
	held := []State{StatePending, StateCommitted, StateCopy, StateLate}
	stored := []State{StateExecuting, StateRefusing, StateRepeating, StateBarring}
	type move struct{ from, to State }
	allowed := make(map[move]int)
	for to, from := range map[State][]State{
		StateCommitted:  {StatePending, StateLate, StateExecuting, StateRefusing, StateBarring, StateDelivering},
		StateCopy:       {StatePending, StateCommitted, StateLate, StateRepeating},
		StateLate:       {StatePending, StateBarring},
		StateExecuting:  {StatePending},
		StateRefusing:   {StatePending},
		StateRepeating:  {StateCopy, StateExecuting, StateRefusing, StateBarring},
		StateBarring:    {StatePending, StateCommitted, StateLate},
		StateDelivering: slices.Concat(held, stored),
		StatePending:    {StateExecuting, StateRefusing, StateDelivering},
	} {
		for _, f := range from {
			allowed[move{f, to}] = 0
		}
	}
	random, now := rand.New(rand.NewPCG(1, 2)), time.Unix(1_700_000_000, 0)
	operations := []struct {
		name string
		from []State // in which the node does it; nil is any
		do   func(*Request)
	}{
		{"MarkCopy", nil, (*Request).MarkCopy},
		{"MarkLate", nil, (*Request).MarkLate},
		{"Commit", slices.Concat(held, stored), func(r *Request) { r.Commit(uint64(random.IntN(2))) }},
		{"Execute", []State{StatePending}, func(r *Request) { r.Execute(now) }},
		{"Refuse", []State{StatePending}, func(r *Request) { r.Refuse(now) }},
		{"Bar", held, func(r *Request) { r.Bar(now) }},
		{"AskAgain", stored, (*Request).AskAgain},
		{"Deliver", slices.Concat(held, stored), func(r *Request) { r.Deliver(uint64(random.IntN(2)), now) }},
		{"Hold", append(stored, StateDelivering), (*Request).Hold},
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
