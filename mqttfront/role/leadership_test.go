package role

import (
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/pending"
)

// † A copy whose reply was on its way when the leadership ended is still a copy to the next leader, which answers it, although the first reply is
// published: the client asked again because it did not get that one.
func TestCopyWhoseReplyWasOnItsWayIsAnswered(t *testing.T) {
	f, s := newNode(t)
	next, others := newNode(t)
	probe, _ := newNode(t)
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
	leading(f).stopServing()
	f.recheckPending()
	serve(next)
	held := heldBy(t, f)
	next.mu.Lock()
	defer next.mu.Unlock()
	if added := leading(next).mergePeerRequestsLocked(others.machine, map[string][]*pending.Request{"other": held}); len(added) != 1 {
		t.Errorf("the next leader takes up %d of the copies", len(added))
	}
}

// † A refusal that did not get into the log says nothing to other nodes: the next leader executes the request.
func TestRefusalThatIsNotInTheLogBindsNoOtherNode(t *testing.T) {
	for name, holds := range map[string]bool{"the next leader holds the request, too": true, "the next leader lacks it": false} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			next, others := newNode(t)
			if holds {
				arrive(next, del, "0123456789abcdef", "__srcId", "c")
			}
			serve(f)
			f.receiver.decodeAndAdmit(t.Context(), mqttconn.Message{Publish: &paho.Publish{QoS: 1, Topic: topics.Invoke, Payload: []byte(del), Properties: &paho.PublishProperties{
				ResponseTopic: "clients/c/r", CorrelationData: []byte("0123456789abcdef"), User: paho.UserProperties{{Key: "__srcId", Value: "c"}},
			}}}, time.Now().Add(-f.config.MaxWait()-time.Second), false, func() {})
			if s.proposed[0].Kind != fsm.KindReject {
				t.Fatalf("%+v is proposed", s.proposed[0])
			}
			f.Failed(s.tags[0], false)
			leading(f).stopServing()
			f.recheckPending()
			next.barrier.Pass(time.Now().Add(time.Hour))
			serveWith(next, PeerRequests{byNode: map[string][]*pending.Request{"other": heldBy(t, f)}, received: time.Now()})
			if len(others.proposed) != 1 || others.proposed[0].Kind != fsm.KindDel {
				t.Errorf("the next leader proposes %+v", others.proposed)
			}
		})
	}
}
