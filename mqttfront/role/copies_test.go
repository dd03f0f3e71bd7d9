package role

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
)

// commit applies an entry to the store's state, as the next entry of its leader. The front end does not learn of it.
func commit(t *testing.T, s *fakeStore, entry fsm.Entry) {
	t.Helper()
	apply := func(entry *fsm.Entry) {
		if _, err := s.machine.Apply(s.machine.Status().Index+1, 1, fsm.AppendEntry(nil, entry)); err != nil {
			t.Fatal(err)
		}
	}
	if s.machine.Status().Index == 0 {
		apply(&fsm.Entry{Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}})
	}
	entry.Term, entry.Number = 1, s.machine.Status().Number+1
	apply(&entry)
}

// The log refused a write without a reply: the dedup table had no room even for the refusal. Another node has not applied that entry, and still holds a
// copy. The copy is not taken up, because later requests of the client may have been executed. A copy that the client sends again afterwards is taken up.
func TestDroppedIsNotTakenUp(t *testing.T) {
	for _, leads := range []bool{true, false} {
		t.Run(fmt.Sprintf("leads %v", leads), func(t *testing.T) {
			f, s := newNode(t)
			other, _ := newNode(t)
			arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
			if leads {
				serve(f)
			}
			arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
			outcome := &fsm.EntryOutcome{
				Index: 4, Published: 4, Commands: []fsm.Command{other.first().Command}, Results: []fsm.Result{{Code: fsm.CodeNoReply}},
			}
			var tags []any
			if leads {
				tags = s.tags[len(s.tags)-1:]
			}
			f.Applied(outcome, tags)
			if f.held() != 0 {
				t.Fatal("the write is not let go")
			}
			held := heldBy(t, other)
			if len(held) != 1 {
				t.Fatal(held)
			}
			if added := f.merge(fsm.New(), map[string][]*pending.Request{"other": held}); len(added) != 0 {
				t.Errorf("leads %v: taken up", leads)
			}
			held[0].Arrived = time.Now().Add(time.Second)
			if added := f.merge(fsm.New(), map[string][]*pending.Request{"other": held}); len(added) != 1 {
				t.Errorf("leads %v: what the client has sent again is refused", leads)
			}
		})
	}
}

// A copy of a write arrives while the dedup table has the outcome. No leader answers it until the table has forgotten the outcome. The copy must not be
// executed then, neither from this node's buffer nor from another node's.
func TestCopyThatWaitedTooLongIsNotExecuted(t *testing.T) {
	f, s := newNode(t)
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16), "__srcId", "c")
	command := probe.first().Command
	commit(t, s, fsm.Entry{Commands: []fsm.Command{command}})
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	if f.held() != 1 {
		t.Fatal("the copy is not held: nobody has answered it")
	}
	commit(t, s, fsm.Entry{Elapsed: command.Lifetime + 5000})
	if _, _, known := s.machine.Remembered(command.ID); known {
		t.Fatal("the outcome is still remembered: the test shows nothing")
	}
	held := pages(f)
	serve(f)
	if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject || s.proposed[0].Rejected[0].ID != command.ID {
		t.Fatalf("%+v is proposed: the log must say that no copy may be executed", s.proposed)
	}
	refused := &fsm.EntryOutcome{Index: 9, Commands: s.proposed, Results: []fsm.Result{{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}}}
	if f.Applied(refused, s.tags); f.held() != 0 || f.Busy() != 0 || f.writes("c") != 0 {
		t.Errorf("%d held, %d busy, %d writing after that", f.held(), f.Busy(), f.writes("c"))
	}
	requests, err := pending.ReadPage(slices.Concat(held...), time.Now(), time.Now())
	if err != nil || len(requests) != 1 {
		t.Fatal(requests, err)
	}
	if added := f.merge(s.machine, map[string][]*pending.Request{"other": requests}); len(added) != 0 {
		t.Error("taken up from another node")
	}
}

// A leader takes up a client's requests from another node, and gets the first of them from the broker after that. When it loses the leadership before any
// of them has an outcome, they keep the order in which the client sent them.
func TestPeerCopiesKeepTheirPosition(t *testing.T) {
	for _, failFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("the first fails first: %v", failFirst), func(t *testing.T) {
			f, s := newNode(t)
			other, _ := newNode(t)
			ids := []string{strings.Repeat("a", 16), strings.Repeat("b", 16), strings.Repeat("c", 16)}
			for _, id := range ids {
				arrive(other, del, id, "__srcId", "c")
			}
			serve(f)
			held := heldBy(t, other)
			f.mergeAndExecute(s.machine, map[string][]*pending.Request{"other": held})
			arrive(f, del, ids[0], "__srcId", "c")
			fail := func() {
				for _, tag := range s.tags {
					f.Failed(tag, false)
				}
			}
			if failFirst {
				fail()
			}
			f.endLeadership(leading(f))
			if !failFirst {
				fail()
			}
			var order []string
			for _, r := range f.list() {
				order = append(order, string(r.Correlation))
				if f.pending.Get(r.Command.ID) != r {
					t.Error("a request is held that is not known by its identity")
				}
			}
			if !slices.Equal(order, ids) {
				t.Errorf("failed first: %v, order: %q", failFirst, order)
			}
		})
	}
}

// A leader admits a request without a dedup lookup. It looks up the requests that it still holds when it stops leading: before the next leader can answer
// them, the dedup table may have forgotten the outcomes.
func TestCopiesOfALeaderAreRecognized(t *testing.T) {
	f, s := newNode(t)
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16), "__srcId", "c")
	commit(t, s, fsm.Entry{Commands: []fsm.Command{probe.first().Command}})
	serve(f)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	f.endLeadership(leading(f))
	f.Failed(s.tags[len(s.tags)-1], true)
	f.recheckPending()
	if f.held() != 1 || !f.first().IsDuplicate() {
		t.Error("the copy is not recognized")
	}
}

// The log refused a write without a reply while this node's session was away from the broker. The write arrives later, in the session's backlog (messages
// that waited at the broker). The node does not hold it. Otherwise the node would execute it when it leads.
func TestRefusedWriteInABacklogIsNotHeld(t *testing.T) {
	f, _ := newNode(t)
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16), "__srcId", "c")
	f.Applied(&fsm.EntryOutcome{
		Index: 4, Commands: []fsm.Command{probe.first().Command}, Results: []fsm.Result{{Code: fsm.CodeNoReply}},
	}, nil)
	f.removeExpired(time.Now().Add(pending.AnsweredMemory + time.Second))
	f.receiver.decodeAndAdmit(t.Context(), message(del, strings.Repeat("a", 16), nil, "__srcId", "c"), ingest.Arrival{At: time.Now(), Backlog: true}, func() {})
	if f.held() != 0 {
		t.Error("it is held")
	}
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	if f.held() != 1 {
		t.Error("what the client sends again is not")
	}
}

// A follower that restores a snapshot does not apply the entries of requests that it holds. It finds their outcomes in the restored state.
func TestHeldIsRecognizedAfterASnapshot(t *testing.T) {
	f, s := newNode(t)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	held := f.first()
	commit(t, s, fsm.Entry{Commands: []fsm.Command{held.Command}})
	f.Restored(fsm.Status{})
	f.recheckPending()
	if !held.IsDuplicate() {
		t.Error("the request is not recognized")
	}
}

// The broker restarted and lost a published reply. The client sends the request again, and only a follower receives that copy. The leader takes the copy
// up, to answer once more. It does not take up an original that the follower holds only because it has not applied the outcome yet.
func TestCopyOfWhatWasPublishedIsAnsweredAgain(t *testing.T) {
	for _, copied := range []bool{true, false} {
		t.Run(fmt.Sprintf("copied %v", copied), func(t *testing.T) {
			f, s := newNode(t)
			other, behind := newNode(t)
			arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
			first := other.first()
			for _, store := range []*fakeStore{s, behind} {
				commit(t, store, fsm.Entry{Commands: []fsm.Command{first.Command}})
				commit(t, store, fsm.Entry{Published: store.machine.Status().Index})
			}
			if copied {
				other.drop(first)
				arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
			}
			serve(f)
			held := heldBy(t, other)
			if len(held) != 1 {
				t.Fatal(held)
			}
			if added := f.merge(s.machine, map[string][]*pending.Request{"other": held}); (len(added) == 1) != copied {
				t.Errorf("copied %v: %d taken up", copied, len(added))
			}
		})
	}
}

// † Each copy prolongs the dedup entry of its request, because the client may send it again for as long after that. So a new leader that holds a copy
// proposes a refusal, which prolongs the entry. For a request that arrived before its outcome, the entry lasts long enough.
func TestCopyProlongsItsOutcomeAtATakeover(t *testing.T) {
	const later = 30 * time.Second
	for name, test := range map[string]struct {
		before, after bool // the request comes before its outcome; a copy comes after it
		logged        int
	}{
		"a request":                   {true, false, 0},
		"a copy":                      {false, true, 1},
		"a request, and a copy of it": {true, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newNode(t)
				other, _ := newNode(t)
				arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
				if test.before {
					arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
				}
				commit(t, s, fsm.Entry{Commands: []fsm.Command{other.first().Command}})
				time.Sleep(later)
				commit(t, s, fsm.Entry{Elapsed: later.Milliseconds()})
				if test.after {
					arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
				}
				serve(f)
				if len(s.proposed) != test.logged || f.sent() != 1-test.logged {
					t.Errorf("%d proposed, %d answered at once", len(s.proposed), f.sent())
				}
			})
		})
	}
}

// † The same holds for a copy that only another node received, if this node has the request from before its outcome.
func TestCopyOfAnotherNodeProlongsTheOutcomeAtATakeover(t *testing.T) {
	const later = 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		other, theirs := newNode(t)
		arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
		w := f.first().Command
		commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
		commit(t, theirs, fsm.Entry{Commands: []fsm.Command{w}})
		time.Sleep(later)
		commit(t, s, fsm.Entry{Elapsed: later.Milliseconds()})
		arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
		serveWith(f, PeerRequests{byNode: map[string][]*pending.Request{"other": heldBy(t, other)}})
		if len(s.proposed) != 1 || f.sent() != 0 {
			t.Errorf("%d proposed, %d answered at once", len(s.proposed), f.sent())
		}
	})
}
