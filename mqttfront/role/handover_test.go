package role

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
	"holdfast/internal/testwait"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// nodeHolding returns a node that holds requests, which arrived one second apart, the last one a second ago. Their names are client:correlation.
func nodeHolding(t *testing.T, requests ...string) (*node, *fakeStore) {
	t.Helper()
	f, s := newNode(t)
	for i, name := range requests {
		client, correlation, _ := strings.Cut(name, ":")
		arrive(f, del, correlation+strings.Repeat("-", 16), "__srcId", client)
		f.last().Arrived = time.Now().Add(time.Duration(i-len(requests)) * time.Second)
	}
	return f, s
}

// order returns the names of the requests that a front end holds, as in nodeHolding.
func (f *node) order() (names []string) {
	for _, r := range f.list() {
		names = append(names, r.Command.Principal.ClientID+":"+strings.TrimRight(string(r.Correlation), "-"))
	}
	return names
}

// pages returns the pages in which a front end sends the requests that it holds to a leader.
func pages(f *node) (pages [][]byte) {
	for cursor := uint64(0); ; {
		page, next := f.Held(cursor, 0)
		pages = append(pages, page)
		if cursor = next; cursor == 0 {
			return pages
		}
	}
}

// heldBy returns what a front end holds, as another node reads it.
func heldBy(t *testing.T, f *node) []*pending.Request {
	t.Helper()
	held, err := pending.ReadPage(slices.Concat(pages(f)...), time.Now(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// takeUpFrom makes a front end take up what another one holds.
func takeUpFrom(t *testing.T, f *node, s *fakeStore, other *node) (added []*pending.Request) {
	t.Helper()
	return f.merge(s.machine, map[string][]*pending.Request{"other": heldBy(t, other)})
}

// † A merge adds the requests that only other nodes hold. Each client's requests keep the order that each node has.
func TestMergeKeepsEachNodesOrder(t *testing.T) {
	for name, test := range map[string]struct {
		here   []string
		others map[string][]string
		want   string // of client c
	}{
		"nothing here":            {nil, map[string][]string{"n2": {"c:A", "d:X", "c:B"}}, "A B"},
		"one before":              {[]string{"c:B"}, map[string][]string{"n2": {"c:A", "c:B"}}, "A B"},
		"one after":               {[]string{"c:A"}, map[string][]string{"n2": {"c:A", "c:B"}}, "A B"},
		"after, in spite of time": {[]string{"d:1", "d:2", "d:3", "c:A"}, map[string][]string{"n2": {"c:A", "c:B", "d:9", "d:8", "d:7"}}, "A B"},
		"between":                 {[]string{"c:A", "c:C"}, map[string][]string{"n2": {"c:A", "c:B", "c:C"}}, "A B C"},
		"from two":                {nil, map[string][]string{"n2": {"c:A", "c:B"}, "n3": {"c:B", "c:C"}}, "A B C"},
		"known here":              {[]string{"c:A", "c:B"}, map[string][]string{"n2": {"c:A", "c:B"}}, "A B"},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := nodeHolding(t, test.here...)
			s.held = map[string][][]byte{}
			for node, requests := range test.others {
				other, _ := nodeHolding(t, requests...)
				s.held[node] = pages(other)
			}
			byNode := leading(f).collect(context.Background(), 0).byNode
			f.merge(s.machine, byNode)
			order := f.order()
			of := slices.DeleteFunc(order, func(name string) bool { return !strings.HasPrefix(name, "c:") })
			if got := strings.ReplaceAll(strings.Join(of, " "), "c:", ""); got != test.want {
				t.Errorf("%s; want %s", got, test.want)
			}
		})
	}
}

// A merge adds requests whose answer is an error. A page that cannot be read does not hide the pages behind it.
func TestMergeAddsRequestsWhoseAnswerIsAnError(t *testing.T) {
	other, _ := newNode(t)
	arrive(other, "*1\r\n$4\r\nNOPE\r\n", strings.Repeat("a", 16), "__srcId", "c")
	arrive(other, del, strings.Repeat("b", 16), "__srcId", "c")
	arrive(other, get, strings.Repeat("c", 16), "__srcId", "c")
	arrive(other, get, strings.Repeat("d", 16), "__srcId", "c", "__protVer", "9.9")
	f, s := newNode(t)
	s.held = map[string][][]byte{"n2": append([][]byte{[]byte("\x08nonsense")}, pages(other)...)}
	byNode := leading(f).collect(context.Background(), 0).byNode
	f.merge(s.machine, byNode)
	if f.held() != 4 {
		t.Fatalf("%d of 4", f.held())
	}
	first := f.first()
	last := f.last()
	if first.Command.Kind != 0 || first.Command.Error != fsm.ErrorUnknownCommand || last.UnsupportedVersion != "9.9" {
		t.Errorf("%+v, %+v", first, last)
	}
	if !f.list()[2].Read {
		t.Error("a GET is not marked as a read after the handover")
	}
}

// The pages of a large buffer have all of its requests, and the size of each page is bounded. Requests that are younger than asked for are left out.
func TestHeldPagesAreCompleteAndBounded(t *testing.T) {
	f, _ := newNode(t)
	value := strings.Repeat("v", 100_000)
	for i := range 50 {
		arrive(f, fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n", len(value), value), fmt.Sprintf("%016d", i), "__srcId", "c", "__ts", "1:0:c")
	}
	total := 0
	for _, page := range pages(f) {
		if len(page) > 1<<20+200_000 {
			t.Errorf("a page of %d bytes", len(page))
		}
		requests, err := pending.ReadPage(page, time.Now(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		total += len(requests)
	}
	if total != 50 {
		t.Errorf("%d of 50", total)
	}
	if page, _ := f.Held(0, time.Minute); page != nil {
		t.Error("what is younger than a minute is given")
	}
}

// Many requests are merged in a time that grows with their number, not with its square.
func TestMergeIsQuick(t *testing.T) {
	const many, bound = 100_000, 20 * time.Second // a busy machine needs 5 s, the square of many takes minutes
	f, _ := newNode(t)
	now := time.Now()
	var others []*pending.Request
	for i := range many {
		r := &pending.Request{Done: func() {}, Arrived: now.Add(time.Duration(i) * time.Millisecond), Request: wire.Request{ResponseTopic: fmt.Sprint(i)}}
		r.Command.ID[0], r.Command.ID[1], r.Command.ID[2] = byte(i), byte(i>>8), byte(i>>16)
		others = append(others, r)
		mine := &pending.Request{Done: func() {}, Arrived: now.Add(time.Duration(i)*time.Millisecond + time.Minute), Request: wire.Request{ResponseTopic: fmt.Sprint("x", i)}}
		mine.Command.ID = r.Command.ID
		mine.Command.ID[15] = 1
		f.add(mine)
	}
	began := time.Now()
	if added, _ := f.pending.Merge(map[string][]*pending.Request{"n2": others}, func(*pending.Request) bool { return true }); len(added) != many {
		t.Fatal(len(added))
	}
	if took := time.Since(began); took > bound {
		t.Errorf("took %v", took)
	}
}

// A request that the leader answered outside of the log is released by the leader's report, also when the report arrives before the request.
func TestReportsReleaseReads(t *testing.T) {
	f, _ := newNode(t)
	arrive(f, get, strings.Repeat("a", 16), "__srcId", "c")
	if f.held() != 1 {
		t.Fatal("a GET with an identity is not held")
	}
	id := f.first().Command.ID
	f.HandleBroadcast(id[:])
	if f.held() != 0 {
		t.Error("not let go")
	}
	f.HandleBroadcast(id[:])
	arrive(f, get, strings.Repeat("a", 16), "__srcId", "c")
	if f.held() != 0 {
		t.Error("a report that came first was forgotten")
	}
	arrive(f, get, strings.Repeat("a", 16), "__srcId", "c") // another copy: nobody has said that it is answered
	if f.held() != 1 {
		t.Error("one report let two go")
	}
	f.HandleBroadcast(id[:])
	f.HandleBroadcast(id[:])
	f.removeExpired(time.Now().Add(pending.AnsweredMemory + time.Second))
	arrive(f, get, strings.Repeat("a", 16), "__srcId", "c")
	if f.held() != 1 {
		t.Error("an old report still lets go")
	}
}

// A leader reports a GET that it answered, because no log entry tells the other nodes of it. It reports neither a write nor a GET without an identity.
func TestLeaderReportsReads(t *testing.T) {
	f, s := newNode(t)
	o := serve(f)
	arrive(f, get, strings.Repeat("a", 16), "__srcId", "c")
	f.ReadDone(f.last(), 3, fsm.Result{Code: fsm.CodeNull})
	arrive(f, del, strings.Repeat("b", 16), "__srcId", "c")
	f.Applied(s.outcome(4, fsm.CodeMissing), s.tags[len(s.tags)-1:])
	arrive(f, get, "short", "__srcId", "c")
	f.ReadDone(f.last(), 5, fsm.Result{Code: fsm.CodeNull})
	o.deliver()
	if len(f.reported()) != 1 {
		t.Errorf("%d are reported", len(f.reported()))
	}
}

// A node receives a write after it has applied the outcome. It holds the write only until the delivery watermark (the log index up to which all replies
// are acknowledged) has passed the outcome, and not for a minute.
func TestLateCopyIsReleasedWhenPublished(t *testing.T) {
	f, _ := newNode(t)
	probe, _ := newNode(t)
	arrive(probe, del, strings.Repeat("a", 16), "__srcId", "c")
	command := probe.first().Command
	outcome := func(index, published uint64) *fsm.EntryOutcome {
		return &fsm.EntryOutcome{Index: index, Published: published, Commands: []fsm.Command{command}, Results: []fsm.Result{{Code: fsm.CodeMissing}}}
	}
	f.Applied(outcome(5, 0), nil)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	if f.held() != 1 {
		t.Fatal("not published yet, and not held")
	}
	f.Applied(&fsm.EntryOutcome{Index: 6, Published: 5}, nil)
	if f.held() != 0 {
		t.Error("published, and still held")
	}
	f.Applied(outcome(7, 5), nil)
	f.Applied(&fsm.EntryOutcome{Index: 8, Published: 7}, nil)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	if f.held() != 0 {
		t.Error("published before it came, and held")
	}
}

// A copy that arrives after the outcome was applied, but before it is known to be published, is held in place of the first: the reply may have been
// lost.
func TestCopyAfterTheOutcomeIsHeldAnew(t *testing.T) {
	f, _ := newNode(t)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	first := f.first()
	f.Applied(&fsm.EntryOutcome{Index: 5, Commands: []fsm.Command{first.Command}, Results: []fsm.Result{{Code: fsm.CodeMissing}}}, nil)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	f.Applied(&fsm.EntryOutcome{Index: 6, Published: 5}, nil)
	if f.held() != 1 || f.first() == first {
		t.Error("the copy went with the first")
	}
}

// A write that has taken effect is not executed again after the dedup table has forgotten its outcome.
func TestForgottenOutcomeIsNotRepeated(t *testing.T) {
	f, s := newNode(t)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	r := f.first()
	f.Applied(&fsm.EntryOutcome{Index: 5, Commands: []fsm.Command{r.Command}, Results: []fsm.Result{{Code: fsm.CodeDeleted}}}, nil)
	serve(f)
	if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject {
		t.Errorf("%+v is proposed", s.proposed)
	}
}

// A leader takes up a request that only another node received.
func TestLeaderTakesUpWhatItMissed(t *testing.T) {
	f, s := newNode(t)
	serve(f)
	other, _ := nodeHolding(t, "c:A")
	s.held = map[string][][]byte{"n2": pages(other)}
	f.barrier.Advance(time.Now().Add(time.Hour)) // nothing is on its way any more
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		leading(f).sweep(ctx)
	}()
	testwait.Within(t, 10*time.Second, "it is proposed", func() (proposed bool) {
		f.locked(func() { proposed = len(s.proposed) == 1 })
		return proposed
	})
	cancel()
	<-done
}

// A node still sends an expired request to the next leader, because its position orders other requests, until the node forgets it. The leader refuses an
// expired write in the log: the dedup table may have forgotten its outcome, and another node may have a copy that expires later.
func TestExpiredElsewhereIsRefusedInTheLog(t *testing.T) {
	for name, test := range map[string]struct {
		payload string
		change  func(*pending.Request)
		margin  time.Duration // Config.DedupMargin of the leader
		given   int
		refused int
	}{
		"nobody waits for it": {del, func(r *pending.Request) { r.HoldUntil = time.Now().Add(-time.Second) }, time.Minute, 1, 1},
		"the message expired": {del, func(r *pending.Request) { r.Deadline = time.Now().Add(-time.Second) }, time.Minute, 1, 1},
		"it may be forgotten": {del, func(r *pending.Request) { r.HoldUntil = time.Now().Add(-5 * time.Second) }, time.Second, 1, 1},
		"a GET":               {get, func(r *pending.Request) { r.HoldUntil = time.Now().Add(-time.Second) }, time.Minute, 1, 0},
		"for long":            {del, func(r *pending.Request) { r.HoldUntil = time.Now().Add(-time.Minute) }, time.Minute, 0, 0},
		"it has an outcome":   {del, func(r *pending.Request) { r.SetOutcomeIndex(1); r.HoldUntil = time.Now().Add(-time.Second) }, time.Minute, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			other, _ := newNode(t)
			arrive(other, test.payload, strings.Repeat("a", 16), "__srcId", "c")
			test.change(other.first())
			held := heldBy(t, other)
			if len(held) != test.given {
				t.Errorf("%d are given, want %d", len(held), test.given)
			}
			f, s := newNode(t, func(c *Config) { c.DedupMargin = test.margin })
			f.known.version = fsm.Version
			f.barrier.Advance(time.Now())
			serveWith(f, PeerRequests{byNode: map[string][]*pending.Request{"other": held}})
			if len(s.proposed) != test.refused {
				t.Fatalf("%d are proposed", len(s.proposed))
			}
			for _, command := range s.proposed {
				if silent := test.margin == time.Second; command.Kind != fsm.KindReject || command.Rejected[0].Silent != silent {
					t.Errorf("%+v is proposed", command)
				}
			}
		})
	}
}

// A client sent A, B, C. The other node received all three. This node was stopped while B lay in its socket. It read B much later, and then lost its
// session. So its copy of B expires later than the other node's. B still comes between A and C.
func TestExpiredPeerCopyFixesPosition(t *testing.T) {
	for name, forgets := range map[string]bool{"it has expired just now": false, "the other node gave up what has expired": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newNode(t)
				other, _ := newNode(t)
				withExpiry(other, del, strings.Repeat("A", 16), 10, "__srcId", "c")
				withExpiry(other, del, strings.Repeat("B", 16), 3, "__srcId", "c")
				time.Sleep(100 * time.Millisecond)
				withExpiry(other, del, strings.Repeat("C", 16), 10, "__srcId", "c")
				time.Sleep(2800 * time.Millisecond)
				withExpiry(f, del, strings.Repeat("B", 16), 3, "__srcId", "c")
				time.Sleep(500 * time.Millisecond)
				if forgets {
					other.removeExpired(time.Now())
				}
				takeUpFrom(t, f, s, other)
				if order := f.heldOrder("ABC"); order != "ABC" {
					t.Errorf("A, B, C are executed in the order %s", order)
				}
			})
		})
	}
}

// † A client sent a, b, c. At one node b has expired. A third node has a live copy of b: it read b late, or the client sent b again. The leader lacks b.
// It executes the live copy at the position of the expired one, whatever the names of the nodes. Without a live copy, it refuses b in the log at that
// position.
func TestLiveCopyTakesThePlaceOfAnExpiredOne(t *testing.T) {
	for _, test := range []struct {
		here, first, third string // the leader's requests; the names of the node where b has expired and of the third node, empty for none
		want               string // capital letters are refusals
	}{
		{"", "n2", "n3", "abc"},
		{"a", "n2", "n3", "abc"},
		{"ac", "n2", "n3", "abc"},
		{"", "n3", "n2", "abc"},
		{"ac", "n3", "n2", "abc"},
		{"", "n2", "", "aBc"},
		{"ac", "n2", "", "aBc"},
	} {
		t.Run(fmt.Sprintf("the leader has %q, %s is first, %q is third", test.here, test.first, test.third), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newNode(t)
				other, _ := newNode(t)
				third, _ := newNode(t)
				send := func(letter string, seconds uint32) {
					for _, node := range []*node{other, f} {
						if node == other || strings.Contains(test.here, letter) {
							withExpiry(node, del, strings.Repeat(letter, 16), seconds, "__srcId", "c")
						}
					}
				}
				send("a", 10)
				send("b", 3)
				time.Sleep(100 * time.Millisecond)
				send("c", 10)
				time.Sleep(2800 * time.Millisecond)
				withExpiry(third, del, strings.Repeat("b", 16), 3, "__srcId", "c")
				time.Sleep(500 * time.Millisecond)
				other.removeExpired(time.Now())
				s.held = map[string][][]byte{test.first: pages(other)}
				if test.third != "" {
					s.held[test.third] = pages(third)
				}
				f.barrier.Advance(time.Now().Add(time.Hour))
				serveWith(f, f.newLeader().CollectFromPeers(t.Context(), t.Context()))
				if order := s.order(); order != test.want {
					t.Errorf("proposed in the order %s, want %s", order, test.want)
				}
			})
		})
	}
}

// When more than half of the buffer is taken, a node forgets expired requests, to make room for requests whose clients still wait.
func TestExpiredIsForgottenWhenTheBufferIsHalfFull(t *testing.T) {
	for want, messages := range map[int]int{3: 6, 0: 5} {
		t.Run(fmt.Sprintf("want %v", want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, _ := newNode(t, func(c *Config) { c.HoldMessages = messages })
				for _, letter := range []string{"a", "b", "c"} {
					withExpiry(f, del, strings.Repeat(letter, 16), 1, "__srcId", "c")
				}
				time.Sleep(2 * time.Second)
				f.removeExpired(time.Now())
				if f.held() != want {
					t.Errorf("room for %d: %d are held", messages, f.held())
				}
			})
		})
	}
}

// If a client sends an expired request again, the position of the new copy counts. If the broker redelivers the expired request, it is not executed.
func TestExpiredRequestThatIsSentAgain(t *testing.T) {
	for name, test := range map[string]struct {
		redelivered bool
		want        string
	}{"by its client": {false, "BA"}, "by the broker": {true, "AB"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newNode(t)
				withExpiry(f, del, strings.Repeat("A", 16), 1, "__srcId", "c")
				withExpiry(f, del, strings.Repeat("B", 16), 10, "__srcId", "c")
				time.Sleep(2 * time.Second)
				f.removeExpired(time.Now())
				again := message(del, strings.Repeat("A", 16), nil, "__srcId", "c")
				again.Redelivered = test.redelivered
				f.receiver.decodeAndAdmit(t.Context(), again, ingest.Arrival{At: time.Now()}, func() {})
				if order := f.heldOrder("AB"); order != test.want {
					t.Errorf("held in the order %s, want %s", order, test.want)
				}
				serve(f)
				for _, command := range s.proposed {
					if test.redelivered && command.ID == f.first().Command.ID && command.Kind != fsm.KindReject {
						t.Errorf("the redelivery of an expired request is executed: %+v", command)
					}
				}
			})
		})
	}
}

// † A node that was stopped reads old messages from its socket when it goes on, and notes a new arrival time for them. An old probe behind them shows that
// they are old, too. DropSince then drops the held requests that arrived since the last fresh probe, and no later ones.
func TestWhatLayInTheSocketIsDropped(t *testing.T) {
	f, _ := newNode(t)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	fresh := time.Now()
	arrive(f, del, strings.Repeat("b", 16), "__srcId", "c")
	f.receiver.DropSince(fresh)
	if f.held() != 1 || !strings.HasPrefix(string(f.first().Correlation), "a") {
		t.Errorf("%v are held", f.order())
	}
	arrive(f, del, strings.Repeat("c", 16), "__srcId", "c")
	if f.held() != 2 {
		t.Error("what comes afterwards is dropped")
	}
}

// This node's copy of the first request arrived later than the other node's original. Its position here orders neither itself nor the others.
func TestLateCopyDoesNotDecideTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		other, _ := newNode(t)
		first, second, third := strings.Repeat("a", 16), strings.Repeat("b", 16), strings.Repeat("c", 16)
		for _, id := range []string{first, second, third} {
			arrive(other, del, id, "__srcId", "c")
			time.Sleep(10 * time.Millisecond)
		}
		arrive(f, del, third, "__srcId", "c")
		time.Sleep(500 * time.Millisecond)
		arrive(f, del, first, "__srcId", "c")
		takeUpFrom(t, f, s, other)
		if order := f.heldOrder("abc"); order != "abc" {
			t.Errorf("executed in the order %s", order)
		}
	})
}
