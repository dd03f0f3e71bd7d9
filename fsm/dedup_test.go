package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"holdfast/internal/policy"
)

func TestCopiesTakeEffectOnce(t *testing.T) {
	l := newLeader(t)
	set := l.set("k", "1", id(l.newID()))
	first := l.do(set)
	l.do(l.set("k", "2"))
	again := l.do(set)
	if !again.Repeat || again.Code != CodeOK || version(again) != version(first) ||
		l.get("k").Value != "2" {
		t.Errorf("copy: %+v, value %q", again, l.get("k").Value)
	}
	failing := l.set("f", "1", id(l.newID()), token(l.wall+60_001))
	l.want("error", l.do(failing), CodeError, ErrorTokenSkew)
	l.pass(10)
	l.want("the copy gets the same error although it would pass now", l.do(failing), CodeError,
		ErrorTokenSkew)
	withoutID := l.set("n", "1")
	if a, b := l.do(withoutID), l.do(withoutID); version(a) == version(b) {
		t.Error("a request without id takes effect as often as it arrives")
	}
	l.pass(180_000 + 1<<expiryShift)
	if again := l.do(set); again.Repeat {
		t.Error("remembered beyond its lifetime")
	}
	if remembered := l.m.Status().Remembered; remembered != 1 {
		t.Errorf("%d outcomes remembered", remembered)
	}
}

// † A copy prolongs its outcome: the broker may deliver the same copy again later. Members that
// apply the same log forget the same outcomes, restored from a snapshot or not.
func TestCopyProlongsItsOutcome(t *testing.T) {
	l := newLeader(t)
	set := l.set("k", "1", id(l.newID()))
	l.do(set)
	l.pass(170_000)
	l.want("a copy within the lifetime", l.do(set), CodeOK, NoError)
	if !l.m.remembersFor(set.ID, set.Lifetime) {
		t.Error("not remembered for the lifetime of the copy")
	}
	restored, applied := New(), len(l.log)
	if err := restored.Restore(bytes.NewReader(l.snapshot())); err != nil {
		t.Fatal(err)
	}
	for _, pass := range []int64{11_500, 160_000, 20_000} {
		l.pass(pass)
		if _, _, known := l.m.remembered(set.ID); known != (pass != 20_000) {
			t.Errorf("%d ms later: remembered %v", pass, known)
		}
	}
	for _, entry := range l.log[applied:] {
		if _, err := restored.Apply(entry.index, entry.term, entry.data); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(snapshotOf(t, restored), l.snapshot()) {
		t.Error("a member that was restored has another state")
	}
	if count := l.m.Status().Remembered; count != 0 || l.m.dedup.byExpiry.Len() != 0 {
		t.Errorf("%d outcomes are left, in %d lists", count, l.m.dedup.byExpiry.Len())
	}
}

// † An outcome leaves the table by its lifetime only. No client may fill more than half of it. When
// a client's share is full, its further writes are refused, and the refusal is an outcome like
// others.
func TestDedupIsNotEvictedByCrowding(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.DedupEntries = 20 })
	early := l.set("k", "early", id(l.newID()))
	l.do(early)
	results := map[Code]int{}
	var refused Command
	for range 20 {
		c := l.set("k", "flood", id(l.newID()))
		r := l.do(c)
		if r.Code == CodeError && r.Error == ErrorOverloaded {
			refused = c
		}
		results[r.Code]++
	}
	// The share is 10: the early SET, 8 more, one refusal. The other 11 get no reply.
	if results[CodeOK] != 8 || results[CodeError] != 1 || results[CodeNoReply] != 11 {
		t.Errorf("results %v", results)
	}
	if r := l.do(early); !r.Repeat {
		t.Error("an early outcome was crowded out")
	}
	l.want("another client still has room", l.do(l.set("k", "other", id(l.newID()), from("other"))),
		CodeOK, NoError)
	l.want("a refusal stays a refusal", l.do(refused), CodeError, ErrorOverloaded)
	l.pass(200_000)
	l.want("after the lifetime there is room again", l.do(l.set("k", "later", id(l.newID()))),
		CodeOK, NoError)
}

// A client that fills its share of the outcomes is refused, and no other client notices.
func TestClientWithAFullDedupShareIsRefused(t *testing.T) {
	l := newLeader(t)
	l.configure(func(s *Settings) { s.Limits.DedupEntries, s.Limits.DedupPerClient = 100, 10 })
	results := map[Code]int{}
	for range 20 {
		results[l.do(l.set("k", "flood", id(l.newID()))).Code]++
	}
	if results[CodeOK] != 9 || results[CodeError] != 1 || results[CodeNoReply] != 10 {
		t.Errorf("results %v", results)
	}
	for range 9 {
		l.want("another client", l.do(l.set("k", "v", id(l.newID()), from("other"))), CodeOK,
			NoError)
	}
	limits := Limits{DedupEntries: 100, DedupPerClient: 80}
	if share := limits.dedupShare(); share != 50 {
		t.Errorf("a share of %d outcomes is more than half of the table", share)
	}
}

// inOrder returns the outcomes in the order of their ids.
func inOrder(d *dedup) (all []dedupEntry) {
	now := d.capture()
	for m := range now.inOrder() {
		all = append(all, *m)
	}
	return all
}

// If more outcomes have expired than one entry removes, every replica removes the same ones,
// whether it recorded them one by one or restored them from a snapshot.
func TestForgettingDoesNotDependOnOrder(t *testing.T) {
	live := newDedup()
	for i := range uint32(maxExpiredOutcomes + 1000) {
		var m dedupEntry
		binary.LittleEndian.PutUint32(m.id[:], i*2654435761) // not in the order of the ids
		live.put(m, nil)
	}
	restored := newDedup()
	for _, m := range inOrder(&live) {
		restored.put(m, nil)
	}
	live.removeExpired(0)
	restored.removeExpired(0)
	if live.len() != 1000 || !slices.Equal(inOrder(&live), inOrder(&restored)) {
		t.Errorf("%d and %d outcomes are left, and not the same", live.len(), restored.len())
	}
}

// The state machine remembers a silent refusal as an outcome, and gives no answer to the request or
// to its copies.
func TestSilentRefusalIsRememberedAndUnanswered(t *testing.T) {
	l := newLeader(t)
	done, late := l.set("k", "1", id(l.newID())), l.set("k", "2", id(l.newID()))
	first := l.do(done)
	for range 2 {
		if again := l.do(done.Refusal(true)); !again.Repeat || version(again) != version(first) {
			t.Errorf("silent refusal of a request that is done: %+v", again)
		}
		l.want("silent refusal of a request that is not done", l.do(late.Refusal(true)),
			CodeNoReply, NoError)
		l.want("a copy of it", l.do(late), CodeNoReply, NoError)
	}
	if result, _, known := l.m.remembered(late.ID); !known || result.Code != CodeNoReply ||
		l.get("k").Value != "1" {
		t.Errorf("%+v, %v, value %q", result, known, l.get("k").Value)
	}
	if !bytes.Equal(l.snapshot(), snapshotOf(t, func() *Machine {
		restored := New()
		if err := restored.Restore(bytes.NewReader(l.snapshot())); err != nil {
			t.Fatal(err)
		}
		return restored
	}())) {
		t.Error("a restored member has another state")
	}
}

// A policy in the log that this build does not accept was written by another build. The error is
// ErrUnknown: this node has to be upgraded.
func TestPolicyThatDoesNotCompileIsUnknown(t *testing.T) {
	rule := &policy.Rule{Resources: []policy.Resource{{
		Access:  policy.Write,
		KeyType: policy.Pattern, Keys: []string{"["},
	}}}
	entry := appendMessage(nil, 7, func(b []byte) []byte {
		return appendMessage(appendUint(b, 1, uint64(KindConfigure)), 27, func(b []byte) []byte {
			return appendMessage(appendUint(b, 13, 1), 14,
				func(b []byte) []byte { return appendRule(b, rule) })
		})
	})
	if _, err := DecodeEntry(seal(entry)); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v", err)
	}
}

// A build that is older than the version in force cannot read the log or a snapshot.
func TestNewerVersionIsUnknown(t *testing.T) {
	for name, command := range map[string]Command{
		"at the start of a leadership": {Kind: KindLeaderStart, Nonce: 1, Version: Version + 1},
		"later":                        {Kind: KindAdvance, Version: Version + 1},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := DecodeEntry(AppendEntry(nil,
				&Entry{Commands: []Command{command}})); !errors.Is(err, ErrUnknown) {
				t.Errorf("%v", err)
			}
		})
	}
	l := newLeader(t)
	l.m.logVersion = Version + 1
	if err := New().Restore(bytes.NewReader(l.snapshot())); !errors.Is(err, ErrUnknown) {
		t.Errorf("in a snapshot: %v", err)
	}
}

// The memory of the dedup table stays bounded, however often copies prolong outcomes.
func TestProlongedOutcomesAreBounded(t *testing.T) {
	d, random := newDedup(), rand.New(rand.NewPCG(1, 1))
	ids := make([]RequestID, 2000)
	for i := range ids {
		binary.LittleEndian.PutUint64(ids[i][:], random.Uint64())
		d.put(dedupEntry{id: ids[i], expires: 10_000}, nil)
	}
	for round := range int64(100) {
		for _, id := range ids {
			m, _ := d.find(id)
			d.prolong(m, 10_000+(round+1)*2000)
		}
	}
	places := 0
	d.byExpiry.Scan(func(_ int64, due *expiryGroup) bool {
		places += due.len()
		return true
	})
	if places > 2*len(ids) {
		t.Errorf("%d places for %d outcomes", places, len(ids))
	}
	if d.removeExpired(208_000); d.len() != len(ids) {
		t.Errorf("%d outcomes are left before they are due", d.len())
	}
	if d.removeExpired(300_000); d.len() != 0 || d.byExpiry.Len() != 0 ||
		len(d.chunks.free) != len(d.chunks.byNumber) {
		t.Errorf("%d outcomes are left, %d lists, %d of %d chunks", d.len(), d.byExpiry.Len(),
			len(d.chunks.byNumber)-len(d.chunks.free), len(d.chunks.byNumber))
	}
}

func TestRefusalIsRememberedAsTheOutcome(t *testing.T) {
	l := newLeader(t)
	done, refused := l.set("k", "1", id(l.newID())), l.set("k", "2", id(l.newID()))
	l.do(done)
	l.do(Command{Kind: KindReject, Rejected: []Rejection{
		{ID: done.ID, ClientID: "c", Lifetime: 1000},
		{ID: refused.ID, ClientID: "c", Lifetime: 1000, Dialect: SDK},
	}})
	l.want("a request that is done stays done", l.do(done), CodeOK, NoError)
	l.want("a rejected one has no effect", l.do(refused), CodeError, ErrorOverloaded)
	if result, index, ok := l.m.remembered(refused.ID); !ok || index != 3 || result.Dialect != SDK {
		t.Errorf("%+v, %d, %v", result, index, ok)
	}
	if l.get("k").Value != "1" {
		t.Error("a rejected SET took effect")
	}
}

// BenchmarkDedup is one request in a table of a million outcomes: it is looked up, remembered, and
// the oldest one is forgotten.
func BenchmarkDedup(b *testing.B) {
	const outcomes, perMillisecond = 1_000_000, 10
	d, random, n := newDedup(), rand.New(rand.NewPCG(1, 1)), int64(0)
	add := func() {
		var m dedupEntry
		binary.LittleEndian.PutUint64(m.id[:], random.Uint64())
		if _, known := d.find(m.id); known {
			return
		}
		m.expires = n/perMillisecond + outcomes/perMillisecond
		d.put(m, nil)
		if n++; n%perMillisecond == 0 {
			d.removeExpired(n / perMillisecond)
		}
	}
	for range outcomes {
		add()
	}
	b.ReportAllocs()
	for b.Loop() {
		add()
	}
}
