package role

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
)

// correlationA is the correlation data of the request of these tests.
var correlationA = strings.Repeat("a", 16)

// The leader changes again before the first new leader's first sweep (a sweep takes up the requests that only other nodes hold). The second new leader
// answers the request, when it begins or by its sweep.
func TestRequestIsAnsweredAfterTwoTakeovers(t *testing.T) {
	_, other, s, _ := executedByEarlierLeader(t) // the first new leader's delivery watermark has passed the outcome
	// The first new leader is lost. A third one begins, and reaches the follower.
	if _, err := s.machine.Apply(s.machine.Status().Index+1, 2, fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}})); err != nil {
		t.Fatal(err)
	}
	other.Applied(&fsm.EntryOutcome{Index: s.machine.Status().Index, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}, Results: []fsm.Result{{}}}, nil)
	for _, how := range []string{"begin", "sweep"} {
		t.Run(how, func(t *testing.T) {
			third, s3 := newNode(t)
			s3.machine = s.machine
			held := PeerRequests{}
			if how == "begin" {
				held = PeerRequests{byNode: map[string][]*pending.Request{"other": heldBy(t, other)}, received: time.Now()}
				third.barrier.Advance(time.Now())
			}
			o := serveWith(third, held)
			if how == "sweep" {
				page, _ := other.Held(0, time.Nanosecond)
				s3.held = map[string][][]byte{"other": {page}}
				third.barrier.Advance(time.Now())
				leading(third).sweepOnce(t.Context())
			}
			if len(o.outputs)+len(s3.proposed) == 0 {
				t.Errorf("%s: reported as answered, and nobody answers", how)
			}
			if len(s3.proposed) > 0 && s3.proposed[0].Kind != fsm.KindReject {
				t.Errorf("%s: executed again: %+v", how, s3.proposed)
			}
		})
	}
}

// A leader retrieves the outcome of a request through the log: the result of a refusal is the known outcome. The leader is lost before it has published
// the reply. The next leader answers.
func TestOutcomeThatWasRetrievedAndNotPublishedIsAnswered(t *testing.T) {
	leader, other, s, index := executedByEarlierLeader(t)
	page, _ := other.Held(0, time.Nanosecond)
	s.held = map[string][][]byte{"other": {page}}
	leader.barrier.Advance(time.Now())
	leading(leader).sweepOnce(t.Context())
	commit(t, s, fsm.Entry{Commands: s.proposed, Published: index})
	other.Applied(&fsm.EntryOutcome{Index: index + 3, Published: index, Commands: s.proposed, Results: []fsm.Result{{Repeat: true, Code: fsm.CodeOK}}}, nil)
	// lost before the reply is out
	third, s3 := newNode(t)
	s3.machine = s.machine
	third.barrier.Advance(time.Now())
	o := serveWith(third, PeerRequests{byNode: map[string][]*pending.Request{"other": heldBy(t, other)}, received: time.Now()})
	id := other.first().Command.ID
	want, _, known := s3.machine.Remembered(id)
	if !known || len(o.outputs) != 1 || o.outputs[0].Request.Command.ID != id || o.outputs[0].Result.Code != want.Code {
		t.Errorf("the outputs are %+v, want one reply with %+v; reported %d", o.outputs, want, len(third.reported()))
	}
	if len(s3.proposed) != 0 {
		t.Errorf("proposed again: %+v", s3.proposed)
	}
}

// A follower received its copy of a request after it had applied the request's entry. The new leader answered its own copy at Begin, so its sweep does not
// answer again.
func TestLateCopyIsNotAnsweredAgain(t *testing.T) {
	leader, s := newNode(t)
	arrive(leader, del, correlationA, "__srcId", "c")
	w := leader.first().Command
	commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
	index := s.machine.Status().Index
	other, os := newNode(t)
	os.machine = s.machine
	other.Applied(&fsm.EntryOutcome{Index: index, Commands: []fsm.Command{w}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, nil)
	arrive(other, del, correlationA, "__srcId", "c") // 5 ms later than the leader's
	other.Applied(&fsm.EntryOutcome{Index: index + 1, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}, Results: []fsm.Result{{}}}, nil)
	o := serve(leader)
	o.deliver()
	commit(t, s, fsm.Entry{Published: index})
	other.Applied(&fsm.EntryOutcome{Index: index + 2, Published: index}, nil)
	leader.barrier.Advance(time.Now())
	page, _ := other.Held(0, time.Nanosecond)
	s.held = map[string][][]byte{"other": {page}}
	leading(leader).sweepOnce(t.Context())
	if len(s.proposed) != 0 {
		t.Errorf("answered again: %d proposed, kind %v, reported %d", len(s.proposed), s.proposed[0].Kind, len(leader.reported()))
	}
}

// A former leader still holds a request that the new leader answered at Begin. The sweep does not answer it again.
func TestRequestOfAFormerLeaderIsNotAnsweredAgain(t *testing.T) {
	former, s := newNode(t)
	serve(former)
	arrive(former, del, correlationA, "__srcId", "c")
	w := former.first().Command
	commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
	index := s.machine.Status().Index
	former.Applied(&fsm.EntryOutcome{Index: index, Commands: []fsm.Command{w}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, s.tags)
	former.endLeadership(leading(former))
	former.recheckPending()
	former.Applied(&fsm.EntryOutcome{Index: index + 1, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}, Results: []fsm.Result{{}}}, nil)
	leader, ls := newNode(t)
	ls.machine = s.machine
	arrive(leader, del, correlationA, "__srcId", "c")
	o := serve(leader)
	o.deliver()
	commit(t, s, fsm.Entry{Published: index})
	former.Applied(&fsm.EntryOutcome{Index: index + 2, Published: index}, nil)
	leader.barrier.Advance(time.Now())
	page, _ := former.Held(0, time.Nanosecond)
	ls.held = map[string][][]byte{"former": {page}}
	leading(leader).sweepOnce(t.Context())
	if len(ls.proposed) != 0 {
		t.Errorf("answered again: %d proposed", len(ls.proposed))
	}
}

// A copy in a session's backlog (messages that waited at the broker) is kept if an earlier leader executed the request: its reply may not have been
// published.
func TestBacklogOfWhatAnEarlierLeaderExecutedIsKept(t *testing.T) {
	probe, s := newNode(t)
	arrive(probe, del, correlationA, "__srcId", "c")
	w := probe.first().Command
	commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
	index := s.machine.Status().Index
	f, fs := newNode(t)
	fs.machine = s.machine
	f.Applied(&fsm.EntryOutcome{Index: index, Commands: []fsm.Command{w}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, nil)
	f.Applied(&fsm.EntryOutcome{Index: index + 1, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}, Results: []fsm.Result{{}}}, nil)
	commit(t, s, fsm.Entry{Published: index})
	f.Applied(&fsm.EntryOutcome{Index: index + 2, Published: index}, nil)
	f.receiver.decodeAndAdmit(context.Background(), message(del, correlationA, nil, "__srcId", "c"), ingest.Arrival{At: time.Now(), Backlog: true}, func() {})
	if f.held() != 1 {
		t.Error("dropped")
	}
}

// Two followers await a report of one request. The report names it once: a follower would take a second one for a copy that is still to come.
func TestRequestIsReportedOnce(t *testing.T) {
	leader, s := newNode(t)
	arrive(leader, del, correlationA, "__srcId", "c")
	w := leader.first().Command
	var others []*node
	for range 2 {
		o, os := newNode(t)
		os.machine = s.machine
		arrive(o, del, correlationA, "__srcId", "c")
		others = append(others, o)
	}
	commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
	index := s.machine.Status().Index
	o := serve(leader)
	o.deliver()
	commit(t, s, fsm.Entry{Published: index})
	s.held = map[string][][]byte{}
	for i, f := range others {
		f.Applied(&fsm.EntryOutcome{Index: index, Commands: []fsm.Command{w}, Results: []fsm.Result{{Code: fsm.CodeOK}}}, nil)
		f.Applied(&fsm.EntryOutcome{Index: index + 1, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart}}, Results: []fsm.Result{{}}}, nil)
		f.Applied(&fsm.EntryOutcome{Index: index + 2, Published: index}, nil)
		page, _ := f.Held(0, time.Nanosecond)
		s.held[string(rune('x'+i))] = [][]byte{page}
	}
	leader.barrier.Advance(time.Now())
	leading(leader).sweepOnce(t.Context())
	l := leading(leader)
	l.sendReport(t.Context(), l.toRelease)
	if len(s.told) != 1 || string(s.told[0]) != string(w.ID[:]) {
		t.Fatalf("the reports are %x, want one with the id %x once", s.told, w.ID)
	}
	if others[0].HandleBroadcast(s.told[0]); others[0].held() != 0 {
		t.Error("the follower still has the request")
	}
	arrive(others[0], del, correlationA, "__srcId", "c") // its client sends it again
	if others[0].held() != 1 {
		t.Error("the copy that the client sent again is dropped")
	}
}

// A follower applies nothing for a while, so it still holds a request after the answer. The leader answers the request once, and not with each sweep.
func TestLaggingFollowerIsAnsweredOnce(t *testing.T) {
	leader, other, s, index := executedByEarlierLeader(t)
	page, _ := other.Held(0, time.Nanosecond)
	s.held = map[string][][]byte{"other": {page}}
	o := leading(leader).sender.(*fakeOutbox)
	replies := 0
	for range 3 {
		leader.barrier.Advance(time.Now())
		s.proposed, s.tags = nil, nil
		leading(leader).sweepOnce(t.Context())
		if len(s.proposed) == 0 {
			continue
		}
		commit(t, s, fsm.Entry{Commands: s.proposed, Published: index})
		result, _, _ := s.machine.Remembered(other.first().Command.ID)
		result.Repeat = true
		leader.Applied(&fsm.EntryOutcome{Index: s.machine.Status().Index, Published: index, Commands: s.proposed, Results: []fsm.Result{result}}, s.tags)
		replies += len(o.outputs)
		o.deliver()
		commit(t, s, fsm.Entry{Published: s.published})
	}
	if replies != 1 {
		t.Errorf("%d replies", replies)
	}
}

// The new leader answered the request at Begin. No log entry has the delivery watermark that covers the reply yet. The sweep reports the request, and does not
// answer it again.
func TestAnsweredRequestIsReportedBeforeTheWatermarkPasses(t *testing.T) {
	leader, s := newNode(t)
	arrive(leader, del, correlationA, "__srcId", "c")
	w := leader.first().Command
	other, _ := newNode(t)
	arrive(other, del, correlationA, "__srcId", "c")
	commit(t, s, fsm.Entry{Commands: []fsm.Command{w}})
	serve(leader).deliver()
	leader.barrier.Advance(time.Now())
	s.held = map[string][][]byte{"other": pages(other)}
	leading(leader).sweepOnce(t.Context())
	if len(s.proposed) != 0 || leader.sent() != 0 {
		t.Errorf("answered again")
	}
	if got := leader.reported(); !slices.Equal(got, []fsm.RequestID{w.ID}) {
		t.Errorf("%d requests are reported", len(got))
	}
}
