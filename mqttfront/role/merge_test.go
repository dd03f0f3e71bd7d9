package role

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// probed is the time between a request and the last probe before it, both as the broker received them.
const probed = time.Second

// heldOrder returns the first letters of the Correlation Data of the held requests, in their order. It leaves out letters that are not in of.
func (f *node) heldOrder(of string) string {
	var order strings.Builder
	for _, r := range f.list() {
		if name := string(r.Correlation[:1]); strings.Contains(of, name) {
			order.WriteString(name)
		}
	}
	return order.String()
}

// The position of an answered request is no evidence of the order, because a node may have a later copy of it. A client sent A and, when A was answered,
// B, C, a copy of A, D. This node's session lags: it holds A and B. The other node holds B, C, the copy of A, D. The dedup tables of both have the outcome
// of A.
func TestAnsweredRequestIsNoEvidenceOfTheOrder(t *testing.T) {
	f, s := newNode(t)
	other, others := newNode(t)
	probe, _ := newNode(t)
	name := func(letter string) string { return strings.Repeat(letter, 16) }
	arrive(probe, del, name("A"), "__srcId", "c")
	a := probe.first().Command
	for _, store := range []*fakeStore{s, others} {
		commit(t, store, fsm.Entry{Commands: []fsm.Command{a}})
		commit(t, store, fsm.Entry{Published: store.machine.Status().Index})
	}
	for _, letter := range []string{"A", "B"} {
		arrive(f, del, name(letter), "__srcId", "c")
	}
	for _, letter := range []string{"B", "C", "A", "D"} {
		arrive(other, del, name(letter), "__srcId", "c")
	}
	takeUpFrom(t, f, s, other)
	if order := f.heldOrder("BCD"); order != "BCD" {
		t.Errorf("B, C, D are executed in the order %s", order)
	}
}

// A node that led holds a request and a copy of it. The position of the first one counts.
func TestMergeGoesByTheFirstCopy(t *testing.T) {
	f, s := newNode(t)
	other, _ := newNode(t)
	serve(other)
	for _, letter := range []string{"A", "B", "A", "C"} {
		arrive(other, del, strings.Repeat(letter, 16), "__srcId", "c")
	}
	takeUpFrom(t, f, s, other)
	if order := f.heldOrder("ABC"); order != "ABC" {
		t.Errorf("A, B, C are executed in the order %s", order)
	}
}

// † While a change of the identity settings is rolled out, nodes know a client under different names. Its requests are still put into one order.
func TestNodesThatNameAClientDifferentlyKeepItsOrder(t *testing.T) {
	f, s := newNode(t)
	other, _ := newNodeOf(t, broker.NoDriver{}, wire.Identity{ClientIDProperty: "stamp"})
	send := func(to *node, letters ...string) {
		for _, letter := range letters {
			arrive(to, del, strings.Repeat(letter, 16), "__srcId", "c", "stamp", "session of c")
		}
	}
	send(f, "B", "D")
	send(other, "A", "B", "C", "D")
	takeUpFrom(t, f, s, other)
	if order := f.heldOrder("ABCD"); order != "ABCD" {
		t.Errorf("A, B, C, D are executed in the order %s", order)
	}
	for _, r := range f.list() {
		if r.ClientKey() != "c" {
			t.Errorf("reads of the client do not wait for %s: it is of %q", r.Correlation, r.ClientKey())
		}
	}
}

// sending is one publication of a request of a client.
type sending struct {
	number int
	at     time.Duration
}

// stream draws the publications of a client in order of time: each request once, and later copies of some. again has the copied ones.
func stream(r *rand.Rand, count int) (sent []sending, again map[int]bool) {
	again = make(map[int]bool)
	for number := range count {
		at := time.Duration(number) * 50 * time.Millisecond
		sent = append(sent, sending{number, at})
		if r.IntN(8) == 0 {
			again[number] = true
			sent = append(sent, sending{number, at + 1500*time.Millisecond + time.Duration(r.Int64N(int64(2*time.Second)))})
		}
	}
	slices.SortStableFunc(sent, func(a, b sending) int { return int(a.at - b.at) })
	return sent, again
}

// bursts draws the publications of a client that sends six requests at once, and copies of some in the middle of a later burst.
func bursts(r *rand.Rand, count int) (sent []sending, again map[int]bool) {
	const pause, burst = 450 * time.Millisecond, 6
	again = make(map[int]bool)
	for number := range count {
		sent = append(sent, sending{number, time.Duration(number/burst)*pause + time.Duration(number%burst)*time.Microsecond})
		if r.IntN(4) == 0 {
			again[number] = true
			later := time.Duration(number/burst+1+r.IntN(2)) * pause
			sent = append(sent, sending{number, later + time.Duration(r.IntN(burst))*time.Microsecond + time.Microsecond/2})
		}
	}
	slices.SortStableFunc(sent, func(a, b sending) int { return int(a.at - b.at) })
	return sent, again
}

// reads drops from a stream, for one node, the first copy of some requests: these are reads that were answered before the second copy came.
func reads(r *rand.Rand, sent []sending, again map[int]bool) (kept []sending) {
	answered := make(map[int]bool)
	for number := range again {
		answered[number] = r.IntN(6) == 0
	}
	for _, s := range sent {
		if answered[s.number] {
			answered[s.number] = false
			continue
		}
		kept = append(kept, s)
	}
	return kept
}

// receive draws what one node holds of a stream, with a lag of its own. If whole is true, only up to three messages at the end are missing. Otherwise the
// beginning, the end and a part in between may be missing.
func receive(r *rand.Rand, sent []sending, whole bool, now time.Time) (held []*pending.Request) {
	const expiry = 20 * time.Second
	from, to := r.IntN(len(sent)/2+1), len(sent)-r.IntN(len(sent)/2+1)
	missing := from + r.IntN(len(sent))
	if whole {
		from, to, missing = 0, len(sent)-r.IntN(4), len(sent)
	}
	lag := time.Duration(r.Int64N(int64(2 * time.Second)))
	known := time.Duration(0) // a session that was resumed knows little of when the broker received what it brings
	if r.IntN(4) == 0 {
		known = time.Minute
	}
	seen := make(map[int]*pending.Request)
	for i, s := range sent[:max(to, from)] {
		if i < from || i >= missing && i < missing+3 {
			continue
		}
		left := (expiry - lag).Truncate(time.Second) + time.Second // as a broker tells it: in whole seconds
		arrived := now.Add(s.at + lag)
		q := &pending.Request{Done: func() {}, Arrived: arrived, BrokerReceivedAfter: now.Add(s.at - probed - known), EstimatedSendTime: arrived.Add(left), HoldUntil: arrived.Add(time.Minute), Request: wire.Request{Deadline: arrived.Add(left), ResponseTopic: "clients/c/r"}}
		q.Correlation = []byte(fmt.Sprintf("%016d", s.number))
		q.Command = fsm.Command{Kind: fsm.KindDel, Key: []byte("k")}
		q.Command.ID[0], q.Command.ID[1] = 1, byte(s.number)
		if first := seen[s.number]; first != nil {
			first.Absorb(q) // as a follower does
			continue
		}
		seen[s.number] = q
		held = append(held, q)
	}
	return held
}

// withSecondHand draws what a node holds that led for a short time: the requests that it received and, inserted among them in their order, some that it
// took from another node.
func withSecondHand(r *rand.Rand, received, other []*pending.Request) (held []*pending.Request) {
	known := make(map[int]bool)
	for _, q := range received {
		known[number(q)] = true
	}
	held = slices.Clone(received)
	at := 0
	for _, q := range other {
		if known[number(q)] || r.IntN(2) == 0 {
			continue
		}
		taken := *q
		taken.FromPeer, taken.Relayed = true, true
		at += r.IntN(len(held) - at + 1)
		held = slices.Insert(held, at, &taken)
		at++
	}
	return held
}

// restarted draws what two nodes hold of a client that sends a run of requests, then others, and the run again. One of the nodes restarted shortly before
// the repetition, and holds nothing from before.
func restarted(r *rand.Rand, now time.Time) (lists [][]*pending.Request, again map[int]bool) {
	const pause, shortest = 20 * time.Millisecond, 300 * time.Millisecond
	run, delay := 3+r.IntN(6), shortest+time.Duration(r.Int64N(int64(1200*time.Millisecond)))
	var sent []sending
	again = make(map[int]bool)
	for number := range run + int(delay/pause) + 30 {
		at := time.Duration(number) * pause
		if number < run {
			at, again[number] = time.Duration(number)*time.Microsecond, true
			sent = append(sent, sending{number, at + delay})
		}
		sent = append(sent, sending{number, at})
	}
	slices.SortStableFunc(sent, func(a, b sending) int { return int(a.at - b.at) })
	up := delay - time.Duration(r.Int64N(int64(3*pause)))
	since := slices.DeleteFunc(slices.Clone(sent), func(s sending) bool { return s.at < up })
	hold := func(sent []sending) (held []*pending.Request) {
		lag, seen := time.Duration(r.Int64N(int64(2*pause))), make(map[int]*pending.Request)
		for _, s := range sent {
			arrived := now.Add(s.at + lag)
			q := &pending.Request{Done: func() {}, Arrived: arrived, BrokerReceivedAfter: now.Add(s.at - probed), EstimatedSendTime: arrived, HoldUntil: arrived.Add(time.Minute), Request: wire.Request{ResponseTopic: "clients/c/r"}}
			q.Command = fsm.Command{Kind: fsm.KindDel, Key: []byte("k")}
			q.Command.ID[0], q.Command.ID[1] = 1, byte(s.number)
			if first := seen[s.number]; first != nil {
				first.Absorb(q)
				continue
			}
			seen[s.number] = q
			held = append(held, q)
		}
		return held
	}
	if r.IntN(2) == 0 {
		return [][]*pending.Request{hold(sent[:len(sent)-3]), hold(since)}, again
	}
	return [][]*pending.Request{hold(since[:len(since)-3]), hold(sent)}, again
}

// Each of up to three nodes holds some part of a client's stream. Some of them received late copies. The merge puts two requests that were sent only once
// into the order in which they were sent, if one of the nodes received both.
func TestMergedOrderIsTheTrueOne(t *testing.T) {
	const runs = 9_000
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 7))
		now := time.Now().Add(-10 * time.Second)
		f, s := newNode(t)
		var lists [][]*pending.Request
		var sent []sending
		var again map[int]bool
		switch seed % 3 {
		case 0:
			sent, again = stream(r, 16+r.IntN(20))
			lists = [][]*pending.Request{receive(r, sent, false, now), receive(r, sent, false, now), receive(r, sent, false, now)}
		case 1: // copies that come so soon can be told from originals only if the lists have much in common
			sent, again = bursts(r, 16+r.IntN(20))
			for range 3 {
				lists = append(lists, receive(r, reads(r, sent, again), true, now))
			}
		default:
			lists, again = restarted(r, now)
			lists = append(lists, nil)
		}
		here, n2 := lists[0], lists[1]
		switch kind := seed % 3; {
		case kind == 0 && r.IntN(2) == 0:
			n2 = withSecondHand(r, n2, lists[2*r.IntN(2)])
		case kind == 0:
			here = withSecondHand(r, here, lists[1+r.IntN(2)])
		}
		f.add(here...)
		f.merge(s.machine, map[string][]*pending.Request{"n2": n2, "n3": lists[2]})
		place := make(map[int]int)
		for _, r := range f.list() {
			place[number(r)] = len(place)
		}
		for _, list := range lists {
			for i, a := range list {
				if _, held := place[number(a)]; !held {
					t.Fatalf("seed %d: %d is lost", seed, number(a))
				}
				for _, b := range list[i+1:] {
					if !again[number(a)] && !again[number(b)] && place[number(a)] > place[number(b)] {
						t.Fatalf("seed %d: of %v here, and %v and %v elsewhere, %d is behind %d; sent again were %v",
							seed, numbers(lists[0]), numbers(lists[1]), numbers(lists[2]), number(a), number(b), again)
					}
				}
			}
		}
	}
}

func number(r *pending.Request) int { return int(r.Command.ID[1]) }

func numbers(requests []*pending.Request) (n []int) {
	for _, r := range requests {
		n = append(n, number(r))
	}
	return n
}

// A merge finds the order even if most requests of one node are copies: that node restarted just before the client repeated its requests. The client sent
// 1, 2, 3, then 6 and 4, then 1, 2, 3 again, and then 5.
func TestNodeThatHoldsMostlyCopiesChangesNoOrder(t *testing.T) {
	f, s := newNode(t)
	now := time.Now()
	made := func(number byte, sent time.Duration) *pending.Request {
		q := &pending.Request{Done: func() {}, Arrived: now.Add(sent), BrokerReceivedAfter: now.Add(sent - probed), EstimatedSendTime: now.Add(sent), HoldUntil: now.Add(time.Minute), Request: wire.Request{Deadline: now.Add(20*time.Second + sent), ResponseTopic: "clients/c/r"}}
		q.EstimatedSendTime = q.Deadline
		q.Command = fsm.Command{Kind: fsm.KindDel, Key: []byte("k")}
		q.Command.ID[0], q.Command.ID[1] = 1, number
		return q
	}
	const lag = 300 * time.Millisecond
	here := []*pending.Request{made(1, lag), made(2, lag), made(3, lag), made(6, 2*time.Second+lag), made(4, 2*time.Second+lag)}
	there := []*pending.Request{made(4, 2*time.Second), made(1, 5*time.Second), made(2, 5*time.Second), made(3, 5*time.Second), made(5, 6*time.Second)}
	f.add(here...)
	f.merge(s.machine, map[string][]*pending.Request{"n3": there})
	var order []int
	for _, r := range f.list() {
		order = append(order, number(r))
	}
	if !slices.Equal(order, []int{1, 2, 3, 6, 4, 5}) {
		t.Errorf("the order is %v", order)
	}
}

// A merge of two lists in opposite orders takes bounded time, and loses no request. Later merges of the same lists take at most half as long.
func TestMergeOfContradictionsIsQuick(t *testing.T) {
	f, s := newNode(t)
	const count = 20_000
	now := time.Now()
	made := func(number int) *pending.Request {
		q := &pending.Request{Done: func() {}, Arrived: now, BrokerReceivedAfter: now.Add(-probed), EstimatedSendTime: now, HoldUntil: now.Add(time.Minute), Request: wire.Request{ResponseTopic: "clients/c/r"}}
		q.Command.Kind, q.Command.ID[0], q.Command.ID[1], q.Command.ID[2] = fsm.KindDel, 1, byte(number), byte(number>>8)
		return q
	}
	var there []*pending.Request
	for i := range count {
		q := made(i)
		f.add(q)
		there = append(there, made(count-i))
	}
	began := time.Now()
	f.merge(s.machine, map[string][]*pending.Request{"n3": there})
	first := time.Since(began)
	if first > 20*time.Second {
		t.Errorf("took %v", first)
	}
	f.merge(s.machine, map[string][]*pending.Request{"n3": there}) // notes the contradictions that are left
	const sweeps = 20
	began = time.Now()
	for range sweeps {
		f.merge(s.machine, map[string][]*pending.Request{"n3": there})
	}
	if took := time.Since(began) / sweeps; took > first/2 {
		t.Errorf("each sweep takes %v, the first merge %v", took, first)
	}
	if f.held() != count+1 {
		t.Errorf("%d are held, not %d", f.held(), count+1)
	}
}
