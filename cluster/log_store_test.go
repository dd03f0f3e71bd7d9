package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func openStores(t *testing.T, dir string, kind LogStore) Stores {
	t.Helper()
	stores, err := OpenStores(dir, kind, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return stores
}

// A log is converted there and back, with the votes, from any state in which that was interrupted, and nothing else is started with it.
func TestConvertLog(t *testing.T) {
	dir := t.TempDir()
	from := BoltDB
	m := startMember(t, NewNetwork(), "n1", servers("n1"), openStores(t, dir, from))
	n := leader(t, m)
	for i := range 20 {
		n.must(t, set(fmt.Sprint("k", i), "v"))
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for round := range 4 {
		to := from.other()
		if _, err := OpenStores(dir, to, quiet()); !errors.Is(err, ErrOtherStore) {
			t.Fatalf("%s opens as %s: %v", from, to, err)
		}
		before := openStores(t, dir, from)
		term, index, err := before.LastEntry()
		if err != nil {
			t.Fatal(err)
		}
		vote, err := before.Stable.GetUint64([]byte("CurrentTerm"))
		if err = errors.Join(err, before.Close()); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(to.path(dir)+unfinished, 0o700); err != nil { // an attempt that was interrupted
			t.Fatal(err)
		}
		if converted, err := ConvertLog(t.Context(), dir, to, quiet()); !converted || err != nil {
			t.Fatalf("round %d: %v, %v", round, converted, err)
		}
		after := openStores(t, dir, to)
		termAfter, indexAfter, err := after.LastEntry()
		voteAfter, voteErr := after.Stable.GetUint64([]byte("CurrentTerm"))
		if err = errors.Join(err, voteErr, after.Close()); err != nil || term != termAfter || index != indexAfter || vote != voteAfter {
			t.Fatalf("round %d: term %d, index %d, vote %d became %d, %d, %d: %v", round, term, index, vote, termAfter, indexAfter, voteAfter, err)
		}
		if converted, err := ConvertLog(t.Context(), dir, to, quiet()); converted || err != nil {
			t.Errorf("again: %v, %v", converted, err)
		}
		from = to
	}
	if _, err := ConvertLog(t.Context(), dir, WAL, quiet()); err != nil {
		t.Fatal(err)
	}
	m = startMember(t, NewNetwork(), "n1", servers("n1"), openStores(t, dir, WAL))
	if value, err := leader(t, m).get("k19"); value != "v" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
}

// A log without gaps takes what follows a snapshot that the node was sent: raft has to be told of what kind it is.
func TestWALBehindASnapshot(t *testing.T) {
	network, members := NewNetwork(), servers("n1", "n2", "n3")
	small := func(c *Config, _ *World) { c.TrailingEntries = 1 }
	dir := t.TempDir()
	late := startMember(t, network, "n3", members, openStores(t, dir, WAL), small)
	a, b := startMember(t, network, "n1", members, memoryStores(), small), startMember(t, network, "n2", members, memoryStores(), small)
	n := leader(t, a, b, late)
	n.must(t, set("k", "v"))
	if err := late.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n == late {
		n = leader(t, a, b)
	}
	for i := range 50 {
		n.must(t, set(fmt.Sprint("k", i), "v"))
	}
	if err := n.TakeSnapshot(); err != nil {
		t.Fatal(err)
	}
	n.must(t, set("k", "w"))
	late = startMember(t, network, "n3", members, openStores(t, dir, WAL), small)
	waitFor(t, "it has caught up", func() bool { return late.replica.status().Index >= n.replica.status().Index })
	n.must(t, set("k", "x"))
	waitFor(t, "it follows", func() bool { return late.replica.status().Index >= n.replica.status().Index })
	if first, err := late.world.Stores.Log.FirstIndex(); err != nil || first < 10 {
		t.Errorf("it was sent entries, not a snapshot: the log begins at %d: %v", first, err)
	}
	if !late.log.IsMonotonic() || a.log.IsMonotonic() {
		t.Error("raft is told the wrong kind of log")
	}
}

// entries returns log entries with the indexes.
func entries(from, to uint64) (logs []*raft.Log) {
	for index := from; index <= to; index++ {
		logs = append(logs, &raft.Log{Index: index, Term: index, Type: raft.LogNoop})
	}
	return logs
}

// A conflict with a new leader cuts the end of the log off, and what is left can be read when the node is started again.
func TestWALIsCutAndRead(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, WAL)
	err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Log.DeleteRange(9, 10), stores.Log.StoreLogs(entries(9, 12)), stores.Close())
	if err != nil {
		t.Fatal(err)
	}
	stores = openStores(t, dir, WAL)
	for index := uint64(1); index <= 12; index++ {
		var log raft.Log
		if err := stores.Log.GetLog(index, &log); err != nil || log.Term != index {
			t.Errorf("entry %d: %v, %v", index, log.Term, err)
		}
	}
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
}

// A node that ended while it restored a snapshot has a log that ends before it. raft goes on behind the snapshot.
func TestWALGoesOnBehindASnapshot(t *testing.T) {
	stores := openStores(t, t.TempDir(), WAL)
	log := newCheckedLog(stores.Log, guard{deadline: time.Minute, exit: func(err error) { t.Error(err) }}, 1000)
	if err := errors.Join(log.StoreLogs(entries(1, 5)), log.StoreLogs(entries(35, 36))); err != nil {
		t.Fatal(err)
	}
	first, err := log.FirstIndex()
	if err != nil || first != 35 {
		t.Errorf("the log begins at %d: %v", first, err)
	}
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
}

// The gap that raft leaves in boltdb behind a snapshot is not copied, and a log that is behind replaces none.
func TestConvertLogWithAGapAndWithTwoLogs(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, BoltDB)
	if err := errors.Join(stores.Log.StoreLogs(entries(1, 5)), stores.Log.StoreLogs(entries(35, 40)), stores.Close()); err != nil {
		t.Fatal(err)
	}
	empty, err := WAL.open(WAL.path(dir), quiet())
	if err = errors.Join(err, empty.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := ConvertLog(t.Context(), dir, WAL, quiet()); !errors.Is(err, ErrTwoLogs) {
		t.Errorf("an empty log has replaced the other: %v", err)
	}
	if err := os.RemoveAll(WAL.path(dir)); err != nil {
		t.Fatal(err)
	}
	if converted, err := ConvertLog(t.Context(), dir, WAL, quiet()); !converted || err != nil {
		t.Fatal(err)
	}
	stores = openStores(t, dir, WAL)
	first, err := stores.Log.FirstIndex()
	last, lastErr := stores.Log.LastIndex()
	if err := errors.Join(err, lastErr, stores.Close()); err != nil || first != 35 || last != 40 {
		t.Errorf("%d to %d: %v", first, last, err)
	}
}

var _ raft.MonotonicLogStore = (*checkedLog)(nil)

// A follower whose log begins behind its snapshot knows the term at the snapshot's index: raft looks for it in the log.
func TestSnapshotStandsForTheEntryAtItsIndex(t *testing.T) {
	store := raft.NewInmemStore()
	log := newCheckedLog(store, guard{deadline: time.Minute, exit: func(err error) { t.Error(err) }}, 0)
	if err := log.StoreLog(&raft.Log{Index: 11, Term: 4, Type: raft.LogNoop}); err != nil {
		t.Fatal(err)
	}
	var found raft.Log
	if err := log.GetLog(10, &found); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("before raft runs: %v", err)
	}
	leads := false
	snapshot := func() (index, term uint64) {
		if leads {
			return 0, 0
		}
		return 10, 3
	}
	log.snapshot.Store(&snapshot)
	if err := log.GetLog(10, &found); err != nil || found.Term != 3 || found.Index != 10 {
		t.Errorf("at the snapshot: %+v, %v", found, err)
	}
	if err := log.StoreLog(&found); !errors.Is(err, ErrStandIn) {
		t.Errorf("the stand-in was stored: %v", err)
	}
	for _, index := range []uint64{9, 12} {
		if err := log.GetLog(index, &found); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("at %d: %v", index, err)
		}
	}
	if err := log.GetLog(11, &found); err != nil || found.Term != 4 {
		t.Errorf("behind the snapshot: %+v, %v", found, err)
	}
	leads = true
	if err := log.GetLog(10, &found); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("where the node leads: %v", err)
	}
}

// A deposed leader has a snapshot, entries of its own right behind it, and no log before. It comes back into step with the others.
func TestDeposedLeaderWithNothingBeforeItsSnapshot(t *testing.T) {
	network := NewNetwork()
	ids := []raft.ServerID{"n1", "n2", "n3"}
	stores := map[raft.ServerID]Stores{}
	members := map[raft.ServerID]*member{}
	long := func(c *Config, _ *World) { c.TrailingEntries = 1000 }
	for _, id := range ids {
		stores[id] = memoryStores()
		members[id] = startMember(t, network, id, servers(ids...), stores[id], long)
	}
	old := leader(t, members["n1"], members["n2"], members["n3"])
	id := old.ID()
	for i := range 20 {
		old.must(t, set(fmt.Sprint("k", i), "v"))
	}
	if err := old.TakeSnapshot(); err != nil {
		t.Fatal(err)
	}
	crashed, crash := context.WithCancel(t.Context())
	crash() // no hand-over, which would log more
	_ = old.Close(crashed)
	list, err := stores[id].Snapshots.List()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	// What it had proposed when it was cut off, and nothing before its snapshot.
	log := stores[id].Log
	first, err := log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := log.DeleteRange(first, last); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(4) {
		if err := log.StoreLog(&raft.Log{Index: list[0].Index + 1 + i, Term: list[0].Term, Type: raft.LogNoop}); err != nil {
			t.Fatal(err)
		}
	}
	delete(members, id)
	var others []*member
	for _, m := range members {
		others = append(others, m)
	}
	next := leader(t, others...)
	next.must(t, set("after", "v"))
	back := startMember(t, network, id, nil, stores[id], long)
	for deadline := time.Now().Add(20 * time.Second); back.replica.status().Index < next.replica.status().Index; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is at %d, the leader at %d", back.replica.status().Index, next.replica.status().Index)
		}
	}
}
