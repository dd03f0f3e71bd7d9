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

// commit applies an entry to the store's state, as the next of one leader; the front end is not told.
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

// A write that was dropped, because there was no room even to remember that it was refused, is not executed later from the copy of
// a node that has not heard of it yet: what its client sent behind it came first.
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

// A copy of a write comes while its outcome is remembered, and waits until that is forgotten: nobody could answer. It must not be
// executed then, neither from this node's buffer nor from that of another.
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

// A leader takes up a client's requests from another node, and gets the first of them from the broker after that. When it loses the
// leadership with all of them in hand, they keep the order in which the client sent them.
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
			leading(f).stopServing()
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

// What a leader has taken in without looking whether it is a copy, it looks at when it stops leading: by the time somebody can answer,
// the state may have forgotten the outcome.
func TestCopiesOfALeaderAreRecognized(t *testing.T) {
	f, s := newNode(t)
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16), "__srcId", "c")
	commit(t, s, fsm.Entry{Commands: []fsm.Command{probe.first().Command}})
	serve(f)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	leading(f).stopServing()
	f.Failed(s.tags[len(s.tags)-1], true)
	f.recheckPending()
	if f.held() != 1 || !f.first().IsDuplicate() {
		t.Error("the copy is not recognized")
	}
}

// A write that was dropped while the broker's session was away comes with the session's backlog: it is not held, or the node would
// execute it when it leads.
func TestBacklogOfDropped(t *testing.T) {
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

// A follower that is caught up by a snapshot is not told what happened to the requests that it holds: it finds it in the state.
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

// The broker was restarted and has lost a reply that was published. The client asks again, and only a follower gets that: it is
// for the leader to answer once more. What the follower holds because it has not heard of the outcome yet is not.
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

// † Each copy prolongs what is remembered, also one that a new leader finds: the client may send it again for as long after that. A request that came
// before its outcome needs no more than the outcome has.
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

// † The same holds for a copy that only another node received: this node has the request from before.
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
