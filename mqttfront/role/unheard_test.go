package role

import (
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
)

// executedByEarlierLeader returns a new leader and a follower that holds a request which an earlier leader executed. The new leader began without an
// answer from the follower, and its delivery watermark has passed the outcome. index is that of the outcome.
func executedByEarlierLeader(t *testing.T) (leader, other *node, s *fakeStore, index uint64) {
	t.Helper()
	leader, s = newNode(t)
	other, _ = newNode(t)
	arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
	w := other.first().Command
	commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
	index = s.machine.Status().Index
	serve(leader)
	other.Applied(&fsm.EntryOutcome{Index: index, Commands: []fsm.Command{w}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, nil)
	other.Applied(&fsm.EntryOutcome{Index: index + 1, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}, Results: []fsm.Result{{}}}, nil)
	commit(t, s, fsm.Entry{Published: index})
	other.Applied(&fsm.EntryOutcome{Index: index + 2, Published: index}, nil)
	return leader, other, s, index
}

// † An earlier leader executed a request and was lost before it had published the reply. The new leader did not reach the only node that holds the
// request, so its delivery watermark passed the outcome. The node keeps the request until the leader has answered it.
func TestUncollectedRequestIsAnsweredBySweep(t *testing.T) {
	leader, other, s, index := executedByEarlierLeader(t)
	if other.held() != 1 {
		t.Fatal("released by the delivery watermark")
	}
	sweep := func() {
		page, _ := other.Held(0, time.Nanosecond)
		s.held = map[string][][]byte{"other": {page}}
		leader.barrier.Advance(time.Now())
		leading(leader).sweepOnce(t.Context())
	}
	sweep()
	if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject {
		t.Fatalf("%d proposed: its outcome has to be retrieved", len(s.proposed))
	}
	commit(t, s, fsm.Entry{Commands: s.proposed, Published: index})
	result, _, _ := s.machine.Remembered(other.first().Command.ID)
	result.Repeat = true
	retrieved := &fsm.EntryOutcome{Index: index + 3, Published: index, Commands: s.proposed, Results: []fsm.Result{result}}
	leader.Applied(retrieved, s.tags)
	if leader.sent() != 1 {
		t.Fatal("not answered")
	}
	other.Applied(retrieved, nil)
	if other.held() != 1 {
		t.Fatal("released before the reply is published")
	}
	if other.Applied(&fsm.EntryOutcome{Index: index + 4, Published: index + 3}, nil); other.held() != 0 {
		t.Error("held although the reply is published")
	}
}

// What the new leader answered when it began is reported, and not answered again.
func TestWhatTheNewLeaderAnsweredIsReported(t *testing.T) {
	leader, s := newNode(t)
	arrive(leader, del, strings.Repeat("a", 16), "__srcId", "c")
	w := leader.first().Command
	other, _ := newNode(t)
	arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
	commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
	index := s.machine.Status().Index
	o := serve(leader)
	o.deliver()
	commit(t, s, fsm.Entry{Published: index})
	leader.barrier.Advance(time.Now())
	s.held = map[string][][]byte{"other": pages(other)}
	leading(leader).sweepOnce(t.Context())
	if reported := leader.reported(); len(s.proposed) != 0 || len(reported) != 1 || reported[0] != w.ID {
		t.Errorf("%d proposed, %d reported", len(s.proposed), len(reported))
	}
}

// An earlier leader executed a request. A copy that arrives after the takeover is held like one that arrived before: the present delivery watermark does
// not show that the request was answered.
func TestLateCopyOfWhatAnEarlierLeaderExecutedIsKept(t *testing.T) {
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16), "__srcId", "c")
	w := probe.first().Command
	for name, test := range map[string]struct {
		index uint64 // of the outcome; the leader began at 10, with the delivery watermark at 5
		held  int
	}{
		"executed by an earlier leader":               {7, 1},
		"executed and answered by an earlier leader":  {4, 0},
		"executed and answered by the present leader": {11, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newNode(t)
			outcome := func(index, published uint64, c fsm.Command) {
				f.Applied(&fsm.EntryOutcome{Index: index, Published: published, Commands: []fsm.Command{c}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, nil)
			}
			if test.index < 10 {
				outcome(test.index, 5, w)
			}
			outcome(10, 5, fsm.Command{Kind: fsm.KindLeaderStart})
			if test.index > 10 {
				outcome(test.index, 5, w)
			}
			outcome(12, 12, fsm.Command{Kind: fsm.KindConfigure, Settings: &fsm.Settings{}})
			if arrive(f, del, strings.Repeat("a", 16), "__srcId", "c"); f.held() != test.held {
				t.Errorf("%d held", f.held())
			}
		})
	}
}

// A node that led does not know whether a later leader publishes its replies. Nor does a node that received a snapshot, of the requests that it held. Both
// keep such a request until a report.
func TestCommittedRequestAwaitsAReport(t *testing.T) {
	tests := map[string]func(*node, *fakeStore, fsm.Command){
		"the leadership ends": func(f *node, s *fakeStore, w fsm.Command) {
			serve(f)
			f.Applied(&fsm.EntryOutcome{Index: 4, Commands: []fsm.Command{w}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, s.tags)
			f.endLeadership(leading(f))
		},
		"a snapshot is restored": func(f *node, _ *fakeStore, w fsm.Command) {
			f.Applied(&fsm.EntryOutcome{Index: 4, Commands: []fsm.Command{w}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, nil)
			f.Restored(fsm.Status{})
		},
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
			w := f.first().Command
			end(f, s, w)
			if f.Applied(&fsm.EntryOutcome{Index: 9, Published: 8}, nil); f.held() != 1 {
				t.Fatal("released by the delivery watermark")
			}
			if f.HandleBroadcast(w.ID[:]); f.held() != 0 {
				t.Error("held after the report")
			}
		})
	}
}

// An earlier leader executed a request, whose copy comes to this node late. Meanwhile a snapshot has brought the node past the start of the present
// leader, which may not have published the reply.
func TestLateCopyBehindASnapshotIsKept(t *testing.T) {
	other, _ := newNode(t)
	arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
	w := other.first().Command
	for name, test := range map[string]struct {
		restarted bool   // this node began with a snapshot of the earlier leader
		leader    uint64 // term of the leader in the snapshot that the node is sent later
		held      int
	}{
		"of another leader":                  {false, 4, 1},
		"of the same leader":                 {false, 3, 0},
		"of another leader, after a restart": {true, 4, 1},
		"of the same one, after a restart":   {true, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newNode(t)
			outcome := func(index, term, published uint64, c fsm.Command) {
				f.Applied(&fsm.EntryOutcome{Index: index, Term: term, Published: published, Commands: []fsm.Command{c}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, nil)
			}
			if test.restarted {
				f.Restored(fsm.Status{LeaderTerm: 3, Index: 6})
			} else {
				outcome(5, 3, 0, fsm.Command{Kind: fsm.KindLeaderStart})
			}
			outcome(7, 3, 5, w)
			f.Restored(fsm.Status{LeaderTerm: test.leader, Index: 20})
			outcome(21, test.leader, 12, fsm.Command{Kind: fsm.KindConfigure, Settings: &fsm.Settings{}})
			if arrive(f, del, strings.Repeat("a", 16), "__srcId", "c"); f.held() != test.held {
				t.Errorf("%d held", f.held())
			}
		})
	}
}

// The outcome of a request is a silent refusal: the new leader sends no reply, and tells a node that still holds a copy that it need not.
func TestOutcomeWithoutReplyIsReportedToPeers(t *testing.T) {
	leader, s := newNode(t)
	other, _ := newNode(t)
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16))
	w := probe.first().Command
	commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
	for _, f := range []*node{leader, other} {
		arrive(f, del, strings.Repeat("a", 16))
	}
	commit(t, s, fsm.Entry{Elapsed: w.Lifetime + 5000})
	commit(t, s, fsm.Entry{Elapsed: w.Lifetime + 5001, Commands: []fsm.Command{w.Refusal(true)}})
	index := s.machine.Status().Index
	serve(leader)
	other.Applied(&fsm.EntryOutcome{Index: index, Commands: []fsm.Command{w}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, nil)
	other.Applied(&fsm.EntryOutcome{Index: index + 1, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}, Results: []fsm.Result{{}}}, nil)
	s.held = map[string][][]byte{"other": pages(other)}
	leader.barrier.Advance(time.Now())
	leading(leader).sweepOnce(t.Context())
	if reported := leader.reported(); leader.sent() != 0 || len(reported) != 1 || reported[0] != w.ID {
		t.Errorf("%d replies, %d reported", leader.sent(), len(reported))
	}
}
