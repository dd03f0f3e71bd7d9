package mqttfront

import (
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
)

// Each operation moves a request only as the documentation of pending says.
func TestRequestStates(t *testing.T) {
	const unknown, index = 0, 7
	for _, test := range []struct {
		name    string
		from    requestState
		outcome uint64
		do      func(*request)
		to      requestState
		open    bool
	}{
		{"a pending request is a copy", statePending, unknown, (*request).markCopy, stateCopy, false},
		{"a committed request is found in the state", stateCommitted, index, (*request).markCopy, stateCopy, false},
		{"a late request is a copy", stateLate, unknown, (*request).markCopy, stateCopy, false},
		{"a request in the store is a copy when it comes back", stateExecuting, unknown, (*request).markCopy, stateRepeating, false},
		{"a refused request is a copy when it comes back", stateRefusing, unknown, (*request).markCopy, stateRepeating, false},
		{"a reply on its way is not stopped", stateDelivering, index, (*request).markCopy, stateDelivering, false},
		{"the log has the outcome of a pending request", statePending, unknown, func(r *request) { r.commit(index) }, stateCommitted, false},
		{"the log has the outcome of a late request", stateLate, unknown, func(r *request) { r.commit(index) }, stateCommitted, false},
		{"the log has the outcome of a copy", stateCopy, unknown, func(r *request) { r.commit(index) }, stateCopy, false},
		{"the log has the outcome of a request in the store", stateExecuting, unknown, func(r *request) { r.commit(index) }, stateExecuting, false},
		{"no outcome is known", statePending, unknown, func(r *request) { r.commit(unknown) }, statePending, true},
		{"the store gives a request back", stateExecuting, unknown, (*request).hold, statePending, true},
		{"the store gives a request back that has an outcome", stateExecuting, index, (*request).hold, stateCommitted, false},
		{"the store gives a refusal back", stateRefusing, unknown, (*request).hold, statePending, true},
		{"the store gives a copy back", stateRepeating, unknown, (*request).hold, stateCopy, false},
		{"the store gives a barred request back", stateBarring, unknown, (*request).hold, stateLate, false},
		{"the store gives a barred request back that has an outcome", stateBarring, index, (*request).hold, stateCommitted, false},
		{"the leadership ends before the broker has the reply", stateDelivering, index, (*request).hold, stateCommitted, false},
		{"the leadership ends before the broker has the value that was read", stateDelivering, unknown, (*request).hold, statePending, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &request{state: test.from, outcome: test.outcome}
			test.do(r)
			if r.state != test.to || r.isOpen() != test.open {
				t.Errorf("state %d, open %v; want %d, %v", r.state, r.isOpen(), test.to, test.open)
			}
		})
	}
}

// A request hands on what is known of it to the one that stays.
func TestAbsorbKeepsWhatIsKnown(t *testing.T) {
	for _, test := range []struct {
		name        string
		kept, other requestState
		outcome     uint64 // of the other copy
		to          requestState
	}{
		{"two open requests", statePending, statePending, 0, statePending},
		{"a known copy", statePending, stateCopy, 0, stateCopy},
		{"a known copy whose refusal is under way", statePending, stateRepeating, 0, stateCopy},
		{"a late request, whose refusal is not in the log", statePending, stateLate, 0, statePending},
		{"a request with an outcome", statePending, stateCommitted, 7, stateCommitted},
		{"a known copy, of a request in the store", stateExecuting, stateCopy, 0, stateRepeating},
	} {
		t.Run(test.name, func(t *testing.T) {
			kept := &request{state: test.kept}
			kept.absorb(&request{state: test.other, outcome: test.outcome})
			if kept.state != test.to || kept.outcome != test.outcome {
				t.Errorf("state %d, outcome %d; want %d, %d", kept.state, kept.outcome, test.to, test.outcome)
			}
		})
	}
}

// † A copy whose reply was on its way when the leadership ended is still a copy to the next leader, which answers it, although the first reply is
// published: the client asked again because it did not get that one.
func TestCopyWhoseReplyWasOnItsWayIsAnswered(t *testing.T) {
	f, s := newTestFront(t)
	next, others := newTestFront(t)
	probe, _ := newTestFront(t)
	arrive(probe, del, "0123456789abcdef", "__srcId", "c")
	w := probe.first().Command
	for _, store := range []*fakeStore{s, others} {
		commit(t, store, fsm.Entry{Commands: []fsm.Command{w}})
		commit(t, store, fsm.Entry{Published: store.machine.Status().Index})
		commit(t, store, fsm.Entry{Commands: []fsm.Command{w}})
	}
	serve(f)
	arrive(f, del, "0123456789abcdef", "__srcId", "c")
	index := s.machine.Status().Index
	result, _, _ := s.machine.Remembered(w.ID)
	f.Applied(&fsm.Outcome{Index: index, Commands: []fsm.Command{w}, Results: []fsm.Result{result}, Published: index - 1}, s.tags)
	f.stopServing(leading(f))
	f.recheckPending()
	serve(next)
	held := heldBy(t, f)
	next.mu.Lock()
	defer next.mu.Unlock()
	if added := leading(next).takeUpHeld(next, others.machine, map[string][]*request{"other": held}); len(added) != 1 {
		t.Errorf("the next leader takes up %d of the copies", len(added))
	}
}

// † A refusal that did not get into the log says nothing to other nodes: the next leader executes the request.
func TestRefusalThatIsNotInTheLogBindsNoOtherNode(t *testing.T) {
	for name, holds := range map[string]bool{"the next leader holds the request, too": true, "the next leader lacks it": false} {
		t.Run(name, func(t *testing.T) {
			f, s := newTestFront(t)
			next, others := newTestFront(t)
			if holds {
				arrive(next, del, "0123456789abcdef", "__srcId", "c")
			}
			serve(f)
			f.take(t.Context(), mqttconn.Message{Publish: &paho.Publish{QoS: 1, Topic: topics.Invoke, Payload: []byte(del), Properties: &paho.PublishProperties{
				ResponseTopic: "clients/c/r", CorrelationData: []byte("0123456789abcdef"), User: paho.UserProperties{{Key: "__srcId", Value: "c"}},
			}}}, time.Now().Add(-f.config.maxWait()-time.Second), false, func() {})
			if s.proposed[0].Kind != fsm.KindReject {
				t.Fatalf("%+v is proposed", s.proposed[0])
			}
			f.Failed(s.tags[0], false)
			f.stopServing(leading(f))
			f.recheckPending()
			next.barrier.Pass(time.Now().Add(time.Hour))
			serveWith(next, heldElsewhere{byNode: map[string][]*request{"other": heldBy(t, f)}, received: time.Now()})
			if len(others.proposed) != 1 || others.proposed[0].Kind != fsm.KindDel {
				t.Errorf("the next leader proposes %+v", others.proposed)
			}
		})
	}
}
