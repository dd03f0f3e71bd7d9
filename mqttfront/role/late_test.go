package role

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// Without __srcId the client id comes from the response topic. The request has the same identity either way.
func TestIdentityIsTheSameWithAndWithoutASourceID(t *testing.T) {
	f, s := newNode(t)
	serve(f)
	named, _ := newNode(t)
	arrive(f, del, strings.Repeat("a", 16)) // on clients/c/r
	arrive(named, del, strings.Repeat("a", 16), "__srcId", "c")
	if s.proposed[0].ID != named.first().Command.ID {
		t.Error("the identity depends on whether the client sends __srcId")
	}
}

// A follower knows the outcome of a request, begins to lead and proposes it. It stops leading, and a copy comes before that proposal fails. The two
// become one request, which is counted once.
func TestCopyIsAbsorbedWhileTheStoreHasTheRequest(t *testing.T) {
	f, s := newNode(t)
	arrive(f, del, strings.Repeat("a", 16))
	r := f.first()
	f.Applied(&fsm.EntryOutcome{Index: 5, Commands: []fsm.Command{r.Command}, Results: []fsm.Result{{Code: fsm.CodeDeleted}}}, nil)
	serve(f)
	f.endLeadership(leading(f))
	arrive(f, del, strings.Repeat("a", 16))
	f.Failed(s.tags[0], true)
	f.Applied(&fsm.EntryOutcome{Index: 9, Published: 8}, nil)
	if f.held() != 1 || f.heldBytes() != r.Size || f.first() != r {
		t.Errorf("%d held, %d bytes", f.held(), f.heldBytes())
	}
}

// The log refused a request without a reply. A later report by the leader does not replace that hint.
func TestReportKeepsTheNoReplyHint(t *testing.T) {
	f, _ := newNode(t)
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16))
	command := probe.first().Command
	f.Applied(&fsm.EntryOutcome{Index: 4, Published: 4, Commands: []fsm.Command{command.Refusal(true)}, Results: []fsm.Result{{Code: fsm.CodeNoReply}}}, nil)
	f.HandleBroadcast(command.ID[:])
	if f.pending.Hints().EndedAt(command.ID, pending.EndNoReply).IsZero() {
		t.Error("the report replaced the hint")
	}
}

// A client sends a request again that was refused, and only a follower gets it: the leader answers with the refusal.
func TestCopyOfARefusedRequestIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		other, behind := newNode(t)
		probe, _ := newNode(t)
		arrive(probe, del, strings.Repeat("a", 16))
		command := probe.first().Command
		for _, store := range []*fakeStore{s, behind} {
			commit(t, store, fsm.Entry{Commands: []fsm.Command{command.Refusal(false)}})
			commit(t, store, fsm.Entry{Published: store.machine.Status().Index})
		}
		serve(f)
		arrive(other, del, strings.Repeat("a", 16))
		time.Sleep(2 * time.Second)
		f.barrier.Advance(time.Now())
		sweepNow(t, f, s, other)
		f.Applied(&fsm.EntryOutcome{Index: 9, Commands: s.proposed, Results: []fsm.Result{{Code: fsm.CodeError, Error: fsm.ErrorOverloaded, Repeat: true}}}, s.tags)
		if f.sent() != 1 {
			t.Error("unanswered")
		}
	})
}

// When a refusal has waited in the store for long, the dedup table may have forgotten that the request took effect. Then the refusal is no answer.
func TestRefusalThatWaitedIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t, func(c *Config) { c.RequestsPerClient = 1 })
		serve(f)
		arrive(f, del, strings.Repeat("b", 16)) // fills the share
		arrive(f, del, strings.Repeat("a", 16))
		time.Sleep(f.config.ProposalAge + time.Second)
		f.Applied(&fsm.EntryOutcome{Index: 9, Commands: s.proposed[1:], Results: []fsm.Result{{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}}}, s.tags[1:])
		if f.sent() != 0 || s.tags[1].(*pending.Request).State() != pending.StateDone {
			t.Error("a definite refusal of what may have had its effect")
		}
		if s.published != 9 {
			t.Errorf("the delivery watermark is %d, want 9: other nodes would keep their copies", s.published)
		}
	})
}

// Another leader refused a request silently in the log: it was too late, and may have taken effect before. A new leader that holds a copy does not answer
// it.
func TestSilentRefusalIsUnansweredAtTakeover(t *testing.T) {
	f, s := newNode(t)
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16))
	command := probe.first().Command
	commit(t, s, fsm.Entry{Commands: []fsm.Command{command}})
	arrive(f, del, strings.Repeat("a", 16))
	commit(t, s, fsm.Entry{Elapsed: command.Lifetime + 5000})
	commit(t, s, fsm.Entry{Elapsed: command.Lifetime + 5001, Commands: []fsm.Command{command.Refusal(true)}})
	serve(f)
	if f.sent() != 0 || len(s.proposed) != 0 || f.held() != 0 || f.Busy() != 0 {
		t.Errorf("%d answered, %d proposed, %d held, %d busy", f.sent(), len(s.proposed), f.held(), f.Busy())
	}
}

// The only member executed a request, and could not answer it for longer than the outcome is remembered. The broker sends it again. (The
// dedup table of the fake store is empty, as if it had forgotten.)
func TestRedeliveredWhileTheReplyWaitsIsNotExecuted(t *testing.T) {
	f, s := newNode(t)
	s.alone = true
	serve(f)
	arrive(f, del, strings.Repeat("a", 16))
	f.Applied(s.outcome(3, fsm.CodeDeleted), s.tags)
	arrive(f, del, strings.Repeat("a", 16))
	if len(s.proposed) != 2 || s.proposed[1].Kind != fsm.KindReject {
		t.Errorf("%+v is proposed", s.proposed)
	}
}

// collectOnce collects from the other nodes as if the publishing connections were up at once, so it asks only once.
func collectOnce(t *testing.T, f *node) PeerRequests {
	t.Helper()
	untilConnected, connected := context.WithCancel(t.Context())
	connected()
	return leading(f).CollectFromPeers(t.Context(), untilConnected)
}

// † A node that was started anew leads. Its session does not deliver request a again, which it acknowledged before, but does deliver b. The other node's
// session lags: it has b only later. While the publishing connections are not up, the node asks again.
func TestTakeoverAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		f.barrier.Advance(time.Now().Add(-time.Second))
		other, _ := newNode(t)
		withExpiry(other, del, strings.Repeat("a", 16), 30, "__srcId", "c")
		s.asked = func() map[string][][]byte { return map[string][][]byte{"other": pages(other)} }
		untilConnected, connected := context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, func() { withExpiry(f, del, strings.Repeat("b", 16), 30, "__srcId", "c") })
		time.AfterFunc(500*time.Millisecond, func() { withExpiry(other, del, strings.Repeat("b", 16), 30, "__srcId", "c") })
		time.AfterFunc(time.Second, connected)
		began := time.Now()
		held := leading(f).CollectFromPeers(t.Context(), untilConnected)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		serveWith(f, held)
		if order := s.order(); order != "ab" {
			t.Errorf("proposed in the order %q", order)
		}
	})
}

// If only the first page of a node's list arrives in a later collection, the new leader keeps the requests of the pages that arrived before.
func TestRequestsOfMissingPagesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		f.barrier.Advance(time.Now().Add(-time.Second))
		all := make(map[string][]byte) // by request: a page with it alone
		for _, name := range []string{"a", "b", "c", "d"} {
			other, _ := newNode(t)
			withExpiry(other, del, strings.Repeat(name, 16), 30, "__srcId", "c")
			all[name] = pages(other)[0]
		}
		rounds := 0
		s.asked = func() map[string][][]byte {
			rounds++
			if s.cut = rounds > 1; s.cut {
				return map[string][][]byte{"other": {all["b"]}} // a was answered meanwhile
			}
			return map[string][][]byte{"other": {all["a"], all["b"], all["c"], all["d"]}}
		}
		untilConnected, connected := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, connected)
		held := leading(f).CollectFromPeers(t.Context(), untilConnected)
		order := ""
		for _, r := range held.byNode["other"] {
			order += string(r.Correlation[:1])
		}
		if rounds < 2 || order != "bcd" {
			t.Errorf("the other node holds %q after %d rounds", order, rounds)
		}
	})
}

// BeginLeading decides which requests of other nodes are settled (this node's own session cannot deliver them any more). It counts what the session has
// brought by then, also after the collection.
func TestBeginLeadingDecidesWhatIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t) // started anew: the first request, which it acknowledged, is lost
		f.barrier.Advance(time.Now().Add(-time.Second))
		other, _ := newNode(t)
		withExpiry(other, del, strings.Repeat("a", 16), 30, "__srcId", "c")
		time.Sleep(10 * time.Millisecond)
		withExpiry(other, del, strings.Repeat("b", 16), 30, "__srcId", "c")
		s.held = map[string][][]byte{"other": pages(other)}
		held := collectOnce(t, f) // no probe returns within barrierTime, and the publishing connections are up by then
		withExpiry(f, del, strings.Repeat("b", 16), 30, "__srcId", "c")
		serveWith(f, held)
		if order := s.order(); order != "ab" {
			t.Errorf("proposed in the order %q", order)
		}
	})
}
