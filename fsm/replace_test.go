package fsm

import (
	"bytes"
	"slices"
	"testing"
)

// stageAll stages a snapshot in parts of the given size.
func (l *testLeader) stageAll(data []byte, nonce uint64, size int) {
	l.t.Helper()
	for offset := 0; offset < len(data); offset += size {
		part := data[offset:min(offset+size, len(data))]
		if r := l.do(Command{
			Kind: KindStage, Nonce: nonce, Offset: uint64(offset),
			Value: part,
		}); r.Code != CodeOK {
			l.t.Fatalf("stage at %d: %+v", offset, r)
		}
	}
}

// A snapshot that is restored through the log replaces the keys on every replica alike, also on one
// that joined after the parts were staged. The keys keep their fencing tokens. No version and no
// clock goes back.
func TestRestoreThroughTheLogReplacesTheKeys(t *testing.T) {
	saved := newLeader(t)
	saved.do(saved.set("lock", "holder", token(1000), ttl(60_000)))
	saved.do(Command{Kind: KindKeyNotify, Principal: client("watcher"), Key: []byte("lock")})
	backup := saved.snapshot()

	l := newLeader(t)
	l.wall += 5_000_000 // the cluster has gone on since
	id := l.newID()
	later := l.do(l.set("later", "v", func(c *Command) { c.ID = id }))
	before := l.m.Status()
	l.stageAll(backup, 7, 20)
	if l.get("later").Code != CodeValue {
		t.Fatal("staging changes something")
	}
	replica := New()
	if err := replica.Restore(bytes.NewReader(l.snapshot())); err != nil {
		t.Fatal(err)
	}
	if r := l.do(Command{
		Kind: KindRestore, Nonce: 7,
		Offset: uint64(len(backup)),
	}); r.Code != CodeOK {
		t.Fatalf("%+v", r)
	}
	applyLogged(t, replica, l.log[len(l.log)-1])
	if !bytes.Equal(snapshotOf(t, replica), l.snapshot()) {
		t.Error("a replica that came in the middle has another state")
	}
	if l.get("later").Code != CodeNull || l.get("lock").Value != "holder" {
		t.Error("the keys are not those of the snapshot")
	}
	if l.do(l.set("lock", "thief", token(999))).Error != ErrorTokenLower {
		t.Error("the fencing token was lost")
	}
	if len(l.m.ListWatches("", "", WatchInfo{}, 10)) != 1 {
		t.Error("the watch was lost")
	}
	after := l.m.Status()
	if after.Now < before.Now || after.Wall < before.Wall || after.Clock.Wall < before.Clock.Wall {
		t.Errorf("a clock went back: %+v, %+v", before, after)
	}
	next := l.do(l.set("next", "v"))
	old, _ := later.Version()
	if version, _ := next.Version(); !old.Before(version) {
		t.Errorf("the version %v does not follow %v", version, old)
	}
	if r := l.do(l.set("later", "v", func(c *Command) { c.ID = id })); !r.Repeat {
		t.Error("a copy of a request takes effect a second time after a restore")
	}
}

// A restore into a cluster that is younger than the snapshot moves cluster time forward. The
// outcomes and watches of the cluster do not age by that.
func TestOutcomesAndWatchesDoNotAgeByARestore(t *testing.T) {
	old := newLeader(t)
	old.do(old.set("k", "old"))
	old.do(Command{Kind: KindKeyNotify, Principal: client("gone"), Key: []byte("k")})
	old.elapsed += 1_000_000_000
	old.do(Command{Kind: KindAdvance})
	backup := old.snapshot()

	l := newLeader(t)
	l.configure(func(s *Settings) { s.WatchTTL = 60_000 })
	id := l.newID()
	l.do(l.set("present", "v", func(c *Command) { c.ID = id }))
	l.do(Command{Kind: KindKeyNotify, Principal: client("here"), Key: []byte("k")})
	l.stageAll(backup, 7, 1000)
	l.do(Command{Kind: KindRestore, Nonce: 7, Offset: uint64(len(backup))})
	if now := l.m.Status().Now; now < 1_000_000_000 {
		t.Fatalf("cluster time is %d", now)
	}
	l.pass(10)
	if r := l.do(l.set("present", "v", func(c *Command) { c.ID = id })); !r.Repeat {
		t.Error("an outcome of the present was forgotten")
	}
	if len(l.m.ListWatches("k", "here", WatchInfo{}, 10)) != 1 {
		t.Error("a watch of the present has ended")
	}
	if _, index, known := l.m.remembered(id); !known || index > l.index {
		t.Errorf("its outcome is of entry %d of %d", index, l.index)
	}
	l.do((&WatchInfo{Key: "k", ClientID: "gone"}).EndCommand())
	if len(l.m.ListWatches("k", "gone", WatchInfo{}, 10)) != 0 {
		t.Error("a watch of the snapshot cannot be ended")
	}
}

// Each store's cluster time counts from its own beginning. A backup of another, younger store is
// restored as if no time had passed: a key keeps the time to live that was left, and outcomes and
// watches stay. In a backup of the same store they have aged.
func TestTimesToLiveOfAnotherStoreStay(t *testing.T) {
	for name, test := range map[string]struct {
		term  uint64 // decides the id of the store
		times int    // how often the backup is restored
		kept  bool
	}{
		"another store":       {10, 1, true},
		"another store again": {10, 2, true},
		"this store":          {0, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			young := newLeader(t)
			id := young.newID()
			lock := young.set("lock", "me", func(c *Command) { c.TTL, c.ID = 60_000, id })
			young.do(lock)
			young.do(Command{
				Kind: KindKeyNotify, Principal: client("watcher"),
				Key: []byte("lock"),
			})
			young.pass(10_000)
			backup := young.snapshot()

			old := &testLeader{t: t, m: New(), wall: young.wall, term: test.term}
			old.start()
			old.configure(func(s *Settings) { s.WatchTTL = 120_000 })
			old.pass(864_000_000)
			for range test.times {
				old.stageAll(backup, 7, MaxStageBytes)
				if r := old.do(Command{
					Kind: KindRestore, Nonce: 7,
					Offset: uint64(len(backup)),
				}); r.Code != CodeOK {
					t.Fatalf("%+v", r)
				}
				old.pass(49_000)
			}
			kept := func() bool { return old.get("lock").Code == CodeValue }
			_, _, remembered := old.m.remembered(id)
			if watched := len(old.m.ListWatches("lock", "watcher", WatchInfo{},
				1)) == 1; kept() != test.kept || remembered != test.kept || watched != test.kept {
				t.Errorf("the key is there: %v, its outcome: %v, its watch: %v", kept(), remembered,
					watched)
			}
			if old.pass(2_000); kept() {
				t.Error("the key outlives its time")
			}
		})
	}
}

// A staged snapshot that is incomplete, damaged, or of another restore or leader replaces nothing.
func TestIncompleteSnapshotReplacesNothing(t *testing.T) {
	l := newLeader(t)
	l.do(l.set("k", "v"))
	backup := newLeader(t).snapshot()
	refused := func(name string, c Command) {
		t.Helper()
		if r := l.do(c); r.Code != CodeError || l.get("k").Code != CodeValue {
			t.Errorf("%s: %+v", name, r)
		}
	}
	refused("nothing staged", Command{Kind: KindRestore, Nonce: 1, Offset: 10})
	l.stageAll(backup[:len(backup)-5], 1, 100)
	refused("another restore's part", Command{Kind: KindStage, Nonce: 2, Offset: 20, Value: backup})
	refused("a gap", Command{Kind: KindStage, Nonce: 1, Offset: uint64(len(backup)), Value: backup})
	refused("not whole", Command{Kind: KindRestore, Nonce: 1, Offset: uint64(len(backup))})
	refused("damaged", Command{Kind: KindRestore, Nonce: 1, Offset: uint64(len(backup) - 5)})
	l.stageAll(backup, 3, 100)
	l.start()
	refused("of a leader that is gone",
		Command{Kind: KindRestore, Nonce: 3, Offset: uint64(len(backup))})
}

// The machine and its snapshots remember pinned non-voters (members that are not promoted to
// voters). Their number is bounded.
func TestPinnedNonVotersAreRemembered(t *testing.T) {
	l := newLeader(t)
	l.do(Command{Kind: KindPinNonVoter, Key: []byte("n2.b")})
	l.do(Command{Kind: KindPinNonVoter, Key: []byte("n1.a")})
	l.do(Command{Kind: KindPinNonVoter, Key: []byte("n1.a")})
	restored := New()
	if err := restored.Restore(bytes.NewReader(l.snapshot())); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Machine{l.m, restored} {
		if !m.Pinned("n1.a") || !m.Pinned("n2.b") || m.Pinned("n3.c") {
			t.Error("not remembered")
		}
	}
	l.do(Command{Kind: KindAllowPromotion, Key: []byte("n1.a")})
	l.do(Command{Kind: KindAllowPromotion, Key: []byte("n9")})
	if l.m.Pinned("n1.a") || !restored.Pinned("n1.a") {
		t.Error("not let vote, or a snapshot was changed")
	}
	for i := range maxPinned {
		l.do(Command{Kind: KindPinNonVoter, Key: []byte{'x', byte(i)}})
	}
	if r := l.do(Command{Kind: KindPinNonVoter, Key: []byte("one too many")}); r.Code != CodeError {
		t.Errorf("%+v", r)
	}
}

// Pages of keys and watches are in order, without gaps and without repetitions.
func TestPagesOfKeysHaveNoGapsAndNoRepeats(t *testing.T) {
	l := newLeader(t)
	keys := []string{"a", "a\x00", "b/1", "b/2", "b/3", "c", "\xff\xfe"}
	for _, key := range keys {
		l.do(l.set(key, "v"))
		for _, id := range []string{"x", "y"} {
			l.do(Command{Kind: KindKeyNotify, Principal: client(id), Key: []byte(key)})
		}
	}
	l.do(l.set("b/gone", "v", ttl(5)))
	l.elapsed += 10
	l.do(Command{Kind: KindAdvance})
	list := func(prefix string, limit int) (found []string) {
		for after := ""; ; {
			page := l.m.ListKeys(prefix, after, limit)
			for i := range page {
				found = append(found, page[i].Key)
			}
			if len(page) < limit {
				return found
			}
			after = page[limit-1].Key
		}
	}
	for limit := 1; limit < 9; limit++ {
		if got := list("", limit); !slices.Equal(got, keys) {
			t.Errorf("limit %d: %q", limit, got)
		}
		if got := list("b/", limit); !slices.Equal(got, keys[2:5]) {
			t.Errorf("prefix b/, limit %d: %q", limit, got)
		}
		watches := 0
		for after := (WatchInfo{}); ; {
			page := l.m.ListWatches("b/", "y", after, limit)
			watches += len(page)
			if len(page) < limit {
				break
			}
			after = page[limit-1]
		}
		if watches != 3 {
			t.Errorf("limit %d: %d watches of y below b/", limit, watches)
		}
	}
	if count, bytes, last := l.m.CountKeys("b/", "", 2); count != 2 || bytes != 8 || last != "b/2" {
		t.Errorf("%d %d %q", count, bytes, last)
	}
	if _, found := l.m.FindKey("b/gone"); found {
		t.Error("an expired key is found")
	}
	l.do((&WatchInfo{Key: "c", ClientID: "x"}).EndCommand())
	if len(l.m.ListWatches("c", "x", WatchInfo{}, 9)) != 0 {
		t.Error("the watch goes on")
	}
}

// A restore that moves cluster time forward postpones the outcomes of transactions with their
// replies.
func TestPostponedOutcomesKeepTheirReplies(t *testing.T) {
	old := newLeader(t)
	old.do(old.set("k", "old"))
	old.elapsed += 1_000_000_000
	old.do(Command{Kind: KindAdvance})
	backup := old.snapshot()

	l := newLeader(t)
	l.do(l.set("read", "value"))
	transaction := l.txn(getting("read"), l.set("written", "1"))
	transaction.ID = l.newID()
	first := l.do(transaction)
	l.stageAll(backup, 7, 1000)
	l.do(Command{Kind: KindRestore, Nonce: 7, Offset: uint64(len(backup))})
	if now := l.m.Status().Now; now < 1_000_000_000 {
		t.Fatalf("cluster time is %d", now)
	}
	again := l.do(transaction)
	if !again.Repeat || len(again.Replies) != len(first.Replies) ||
		again.Replies[0].Value != "value" || l.get("written").Code != CodeNull {
		t.Errorf("the copy gets %+v, the first got %+v", again, first)
	}
}

// The index of a restored watch is that of the restore: its index in the backup is of another log,
// and may be greater than those of later notifications.
func TestRestoredWatchEndsWithoutASubscriber(t *testing.T) {
	old := newLeader(t)
	for range 200 {
		old.do(old.set("k", "v"))
	}
	old.do(watching("w", "k"))
	backup := old.snapshot()
	l := newLeader(t)
	l.stageAll(backup, 7, 100_000)
	l.do(Command{Kind: KindRestore, Nonce: 7, Offset: uint64(len(backup))})
	if len(l.m.ListWatches("k", "w", WatchInfo{}, 10)) != 1 {
		t.Fatal("the watch is not there")
	}
	l.pass(60_000)
	l.do(l.set("k", "v"))
	changed := l.index
	if changed >= old.index {
		t.Fatal("the test shows nothing")
	}
	l.do(Command{
		Kind: KindWatchEnd, Principal: client("w"), Key: []byte("k"),
		NotificationIndex: changed, ChangedAt: l.m.Status().Now,
	})
	if len(l.m.ListWatches("k", "w", WatchInfo{}, 10)) != 0 {
		t.Error("the watch stays")
	}
}
