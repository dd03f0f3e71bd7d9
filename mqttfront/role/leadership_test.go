package role

import (
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
)

// † A client sent a request again, because it did not get the first reply, although that was published. The reply to the copy was on its way when the
// leadership ended. The next leader takes the copy up and treats it as a copy, so that it is answered.
func TestCopyWhoseReplyWasOnItsWayIsTakenUp(t *testing.T) {
	old, oldStore := newNode(t)
	next, nextStore := newNode(t)
	scratch, _ := newNode(t)
	arrive(scratch, del, "0123456789abcdef", "__srcId", "c")
	write := scratch.first().Command
	for _, store := range []*fakeStore{oldStore, nextStore} {
		commit(t, store, fsm.Entry{Commands: []fsm.Command{write}})
		commit(t, store, fsm.Entry{Published: store.machine.Status().Index})
		commit(t, store, fsm.Entry{Commands: []fsm.Command{write}})
	}
	serve(old)
	arrive(old, del, "0123456789abcdef", "__srcId", "c")
	index := oldStore.machine.Status().Index
	result, _, _ := oldStore.machine.Remembered(write.ID)
	old.Applied(&fsm.EntryOutcome{Index: index, Commands: []fsm.Command{write}, Results: []fsm.Result{result}, Published: index - 1}, oldStore.tags)
	old.endLeadership(leading(old))
	old.recheckPending()
	serve(next)
	if added := takeUpFrom(t, next, nextStore, old); len(added) != 1 || !added[0].IsDuplicate() {
		t.Errorf("the next leader takes up %+v", added)
	}
}

// † A refusal that did not get into the log says nothing to other nodes: the next leader executes the request.
func TestRefusalThatIsNotInTheLogBindsNoOtherNode(t *testing.T) {
	for name, holds := range map[string]bool{"the next leader holds the request, too": true, "the next leader lacks it": false} {
		t.Run(name, func(t *testing.T) {
			old, oldStore := newNode(t)
			next, nextStore := newNode(t)
			if holds {
				arrive(next, del, "0123456789abcdef", "__srcId", "c")
			}
			serve(old)
			late := time.Now().Add(-old.config.MaxWait() - time.Second)
			old.receiver.decodeAndAdmit(t.Context(), message(del, "0123456789abcdef", nil, "__srcId", "c"), ingest.Arrival{At: late}, func() {})
			if len(oldStore.proposed) != 1 || oldStore.proposed[0].Kind != fsm.KindReject {
				t.Fatalf("%+v is proposed", oldStore.proposed)
			}
			old.Failed(oldStore.tags[0], false) // the refusal has no effect, and will have none
			old.endLeadership(leading(old))
			old.recheckPending()
			next.barrier.Advance(time.Now().Add(time.Hour))
			serveWith(next, PeerRequests{byNode: map[string][]*pending.Request{"other": heldBy(t, old)}, received: time.Now()})
			if len(nextStore.proposed) != 1 || nextStore.proposed[0].Kind != fsm.KindDel {
				t.Errorf("the next leader proposes %+v", nextStore.proposed)
			}
		})
	}
}
