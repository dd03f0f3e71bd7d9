package role

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// order returns the first letters of what was proposed, in lower case, with refusals in upper case.
func (s *fakeStore) order() string {
	var order strings.Builder
	for i, tag := range s.tags {
		name := string(tag.(*pending.Request).Correlation[:1])
		if s.proposed[i].Kind == fsm.KindReject {
			name = strings.ToUpper(name)
		}
		order.WriteString(name)
	}
	return order.String()
}

// sweepNow runs one sweep of a leader, for which another node holds requests.
func sweepNow(t *testing.T, f *node, s *fakeStore, other *node) {
	t.Helper()
	s.held = map[string][][]byte{"other": pages(other)}
	leading(f).sweepOnce(t.Context())
}

// † A follower acknowledged request a, which was only in its memory, and crashed. It resumed its session and received b, the next request of the same
// client. The leader's own session lags by more than a sweep waits. What that session brings goes first.
func TestSweepDoesNotOvertakeTheOwnSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		serve(f)
		f.barrier.Advance(time.Now())
		other, _ := newNode(t) // started anew
		time.Sleep(time.Millisecond)
		withExpiry(other, del, strings.Repeat("b", 16), 30, "__srcId", "c")
		time.Sleep(5 * time.Second)
		sweepNow(t, f, s, other)
		if order := s.order(); order != "" {
			t.Fatalf("%q is executed before what may be on its way", order)
		}
		withExpiry(f, del, strings.Repeat("a", 16), 25, "__srcId", "c")
		withExpiry(f, del, strings.Repeat("b", 16), 25, "__srcId", "c")
		if order := s.order(); order != "ab" {
			t.Errorf("proposed in the order %q", order)
		}
	})
}

// A sweep takes up a request that the leader's session missed when a probe that was sent after the request has returned: the session cannot deliver the
// request any more. A request that came after the probe has to wait.
func TestSweepTakesUpOnlyWhatIsBeforeTheBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		serve(f)
		other, _ := newNode(t)
		withExpiry(other, del, strings.Repeat("a", 16), 30, "__srcId", "c")
		time.Sleep(10 * time.Millisecond)
		f.barrier.Advance(time.Now())
		time.Sleep(10 * time.Millisecond)
		withExpiry(other, del, strings.Repeat("b", 16), 30, "__srcId", "c")
		time.Sleep(5 * time.Second)
		sweepNow(t, f, s, other)
		if order := s.order(); order != "a" {
			t.Errorf("%q is taken up", order)
		}
	})
}

// The session of a new leader lags. The leader takes from other nodes the requests that its session cannot deliver any more, and no others.
func TestNewLeaderTakesUpOnlyWhatIsSettled(t *testing.T) {
	for name, test := range map[string]struct {
		own, other, late string // requests, in the order of arrival; late ones were sent again by their client
		passed           int    // so many of the other's came before the barrier
		want             string
	}{
		"nothing came here":                  {"", "ab", "", 0, ""},
		"all came before the barrier":        {"", "ab", "", 2, "ab"},
		"some came before the barrier":       {"", "ab", "", 1, "a"},
		"before what has come here":          {"b", "abc", "", 0, "ab"},
		"before a copy of what has come":     {"a", "ba", "a", 0, "a"},
		"the own session is ahead":           {"abc", "ab", "", 0, "abc"},
		"the other lacks what has come here": {"ab", "c", "", 1, "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, _ := newNode(t)
				other, _ := newNode(t)
				f.barrier.Advance(time.Now().Add(-time.Second))
				for _, name := range test.own {
					withExpiry(f, del, strings.Repeat(string(name), 16), 30, "__srcId", "c")
				}
				for i, name := range test.other {
					if strings.ContainsRune(test.late, name) {
						time.Sleep(3 * time.Second)
					}
					withExpiry(other, del, strings.Repeat(string(name), 16), 30, "__srcId", "c")
					time.Sleep(10 * time.Millisecond)
					if i+1 == test.passed {
						f.barrier.Advance(time.Now())
					}
					time.Sleep(10 * time.Millisecond)
				}
				s := f.store.(*fakeStore)
				s.held = map[string][][]byte{"other": pages(other)}
				serveWith(f, collectOnce(t, f))
				if order := s.order(); order != test.want {
					t.Errorf("proposed in the order %q, want %q", order, test.want)
				}
			})
		})
	}
}

// The last leader's reply was lost, another node has the request, and this node's session lags. The request has its outcome, so its place does not
// matter: it is answered at once. Later this node may not lead, and the other one may have been told that all replies are published.
func TestUnsettledRequestWithOutcomeIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		other, _ := newNode(t)
		f.barrier.Advance(time.Now().Add(-time.Second))
		arrive(other, del, strings.Repeat("a", 16), "__srcId", "c")
		arrive(other, del, strings.Repeat("b", 16), "__srcId", "c")
		commit(t, s, fsm.Entry{Commands: []fsm.Command{other.first().Command}})
		s.held = map[string][][]byte{"other": pages(other)}
		o := serveWith(f, collectOnce(t, f))
		if len(o.outputs) != 1 || o.outputs[0].Request.Correlation[0] != 'a' || len(s.proposed) != 0 {
			t.Errorf("%d answered, %d proposed", len(o.outputs), len(s.proposed))
		}
	})
}

// † A client sent a, b, c, d. This node's session lags: it has brought only a. The other node's session is new: it received only d. It led, took a from
// this node, and put it behind d, which had arrived there before. When this node leads again, b and c are still on their way, so it must not execute d.
func TestRelayedRequestDoesNotSettleEarlierOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		other, others := newNode(t)
		f.barrier.Advance(time.Now().Add(-time.Second))
		withExpiry(other, del, strings.Repeat("d", 16), 30, "__srcId", "c")
		time.Sleep(10 * time.Millisecond)
		withExpiry(f, del, strings.Repeat("a", 16), 30, "__srcId", "c")
		others.held = map[string][][]byte{"this": pages(f)}
		other.barrier.Advance(time.Now().Add(time.Millisecond))
		serveWith(other, collectOnce(t, other))
		other.endLeadership(leading(other))
		for _, tag := range others.tags {
			other.Failed(tag, true)
		}
		if order := other.heldOrder("ad"); order != "da" {
			t.Fatalf("the other node holds %q", order)
		}
		s.held = map[string][][]byte{"other": pages(other)}
		serveWith(f, collectOnce(t, f))
		if order := s.order(); order != "a" {
			t.Errorf("proposed in the order %q", order)
		}
	})
}

// A node has b by its own session, and took a from a node that holds a, b. It knows the order also when it leads again and that node is gone; and so
// does a third node, to whose session a was never sent.
func TestMergedOrderSurvivesLossOfSourceNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		other, _ := newNode(t)
		third, thirds := newNode(t)
		f.barrier.Advance(time.Now().Add(-time.Second))
		third.barrier.Advance(time.Now().Add(-time.Second))
		a, b := strings.Repeat("a", 16), strings.Repeat("b", 16)
		withExpiry(f, del, b, 30, "__srcId", "c")
		withExpiry(third, del, b, 30, "__srcId", "c")
		time.Sleep(300 * time.Millisecond)
		withExpiry(other, del, a, 30, "__srcId", "c")
		time.Sleep(time.Millisecond)
		withExpiry(other, del, b, 30, "__srcId", "c")
		s.held = map[string][][]byte{"other": pages(other)}
		for leadership := range 2 {
			serveWith(f, collectOnce(t, f))
			if order := s.order(); order != "ab" {
				t.Errorf("leadership %d: proposed in the order %q", leadership, order)
			}
			f.endLeadership(leading(f))
			for _, tag := range s.tags {
				f.Failed(tag, true)
			}
			s.tags, s.proposed, s.held = nil, nil, nil
		}
		thirds.held = map[string][][]byte{"f": pages(f)}
		serveWith(third, collectOnce(t, third))
		if order := thirds.order(); order != "ab" {
			t.Errorf("the third node proposes in the order %q", order)
		}
	})
}

// A node that reorders its requests between two pages sends some of them twice. The first of the two positions counts.
func TestCollectDropsRepeats(t *testing.T) {
	f, s := newNode(t)
	other, _ := newNode(t)
	for _, letter := range []string{"a", "b", "c"} {
		arrive(other, del, strings.Repeat(letter, 16), "__srcId", "c")
	}
	page := pages(other)
	s.held = map[string][][]byte{"other": append(page, page...)}
	var order string
	for _, r := range leading(f).collect(t.Context(), 0).byNode["other"] {
		order += string(r.Correlation[:1])
	}
	if order != "abc" {
		t.Errorf("collected %q", order)
	}
}

// A new leader that lacks a request asks for a probe. If the probe returns in time, nothing from before it is on its way any more, and the leader takes up
// the request.
func TestTakeUpAsksForAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		other, _ := newNode(t)
		withExpiry(other, del, strings.Repeat("a", 16), 30, "__srcId", "c")
		s.held = map[string][][]byte{"other": pages(other)}
		go func() {
			<-f.barrier.Asked()
			sent := time.Now()
			time.Sleep(20 * time.Millisecond)
			f.barrier.Advance(sent)
		}()
		began := time.Now()
		byNode := collectOnce(t, f)
		if took := time.Since(began); took != 20*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if serveWith(f, byNode); s.order() != "a" {
			t.Errorf("%q is taken up", s.order())
		}
		f.endLeadership(leading(f))
		if len(collectOnce(t, f).byNode) != 1 || len(f.barrier.Asked()) != 0 {
			t.Error("a probe is asked for although nothing is missing")
		}
	})
}
