package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/raftlog"
	"holdfast/internal/testwait"
)

func openStores(t *testing.T, dir string, kind raftlog.Kind) raftlog.Stores {
	t.Helper()
	stores, err := raftlog.OpenStores(dir, kind, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return stores
}

// votes are what raft must not forget: the current term, and the term and candidate of the last
// vote.
type votes struct {
	term, lastVote uint64
	candidate      string
}

func votesIn(stable raft.StableStore) (v votes, err error) {
	var termErr, voteErr error
	v.term, termErr = stable.GetUint64([]byte("CurrentTerm"))
	v.lastVote, voteErr = stable.GetUint64([]byte("LastVoteTerm"))
	candidate, err := stable.Get([]byte("LastVoteCand"))
	v.candidate = string(candidate)
	return v, errors.Join(termErr, voteErr, err)
}

// ConvertLog converts a log from boltdb to wal and back, and keeps the last entry, the current term
// and the vote. It replaces what an interrupted conversion left. OpenStores refuses a log of the
// other kind.
func TestLogIsConvertedAndOpensAsItsNewKindOnly(t *testing.T) {
	dir := t.TempDir()
	from := raftlog.BoltDB
	m := startMember(t, NewNetwork(), "n1", servers("n1"), openStores(t, dir, from))
	n := leader(t, m)
	for i := range 20 {
		n.must(t, set(fmt.Sprint("k", i), "v"))
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for round := range 4 {
		to := []raftlog.Kind{raftlog.WAL, raftlog.BoltDB}[round%2]
		if _, err := raftlog.OpenStores(dir, to, quiet()); !errors.Is(err, raftlog.ErrOtherStore) {
			t.Fatalf("%s opens as %s: %v", from, to, err)
		}
		before := openStores(t, dir, from)
		term, index, err := before.LastEntry()
		if err != nil {
			t.Fatal(err)
		}
		kept, err := votesIn(before.Stable)
		if err = errors.Join(err, before.Close()); err != nil {
			t.Fatal(err)
		}
		if kept.term == 0 || kept.lastVote == 0 || kept.candidate == "" {
			t.Fatalf("round %d: there is no vote: %+v", round, kept)
		}
		leaveConversion(t, dir, to)
		if converted, err := raftlog.ConvertLog(t.Context(), dir, to); !converted || err != nil {
			t.Fatalf("round %d: %v, %v", round, converted, err)
		}
		after := openStores(t, dir, to)
		termAfter, indexAfter, err := after.LastEntry()
		votesAfter, votesErr := votesIn(after.Stable)
		if err = errors.Join(err, votesErr, after.Close()); err != nil || term != termAfter ||
			index != indexAfter || kept != votesAfter {
			t.Fatalf("round %d: term %d, index %d, votes %+v became %d, %d, %+v: %v", round, term,
				index, kept, termAfter, indexAfter, votesAfter, err)
		}
		if converted, err := raftlog.ConvertLog(t.Context(), dir, to); converted || err != nil {
			t.Errorf("second conversion in round %d: converted %v, error %v", round, converted, err)
		}
		from = to
	}
	if _, err := raftlog.ConvertLog(t.Context(), dir, raftlog.WAL); err != nil {
		t.Fatal(err)
	}
	m = startMember(t, NewNetwork(), "n1", servers("n1"), openStores(t, dir, raftlog.WAL))
	if value, err := leader(t, m).get("k19"); value != "v" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
}

// leaveConversion leaves in a folder what an interrupted conversion to a kind of log leaves: a part
// of the entries.
func leaveConversion(t *testing.T, dir string, to raftlog.Kind) {
	t.Helper()
	elsewhere := t.TempDir()
	partial := openStores(t, elsewhere, to)
	if err := errors.Join(partial.Log.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogNoop}),
		partial.Close()); err != nil {
		t.Fatal(err)
	}
	name := map[raftlog.Kind]string{raftlog.BoltDB: "raft.db", raftlog.WAL: "wal"}[to]
	if err := os.Rename(filepath.Join(elsewhere, name),
		filepath.Join(dir, name+".converting")); err != nil {
		t.Fatal(err)
	}
}

// After raft has installed a snapshot, the WAL accepts the entries that follow it. A WAL cannot
// have gaps, so raft must empty it first, which CheckedLog.IsMonotonic makes it do.
func TestWALAcceptsEntriesAfterAnInstalledSnapshot(t *testing.T) {
	network, members := NewNetwork(), servers("n1", "n2", "n3")
	small := func(c *Config, _ *Environment) { c.TrailingEntries = 1 }
	dir := t.TempDir()
	late := startMember(t, network, "n3", members, openStores(t, dir, raftlog.WAL), small)
	a, b := startMember(t, network, "n1", members, memoryStores(), small),
		startMember(t, network, "n2", members, memoryStores(), small)
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
	if err := n.Snapshots().Create(); err != nil {
		t.Fatal(err)
	}
	n.must(t, set("k", "w"))
	late = startMember(t, network, "n3", members, openStores(t, dir, raftlog.WAL), small)
	testwait.Until(t, "it has caught up",
		func() bool { return late.Status().State.Index >= n.Status().State.Index })
	n.must(t, set("k", "x"))
	testwait.Until(t, "it follows",
		func() bool { return late.Status().State.Index >= n.Status().State.Index })
	if first, err := late.env.Stores.Log.FirstIndex(); err != nil || first < 10 {
		t.Errorf("it was sent entries, not a snapshot: the log begins at %d: %v", first, err)
	}
}

// A deposed leader catches up with the others although its log has nothing but uncommitted entries
// of its own, which begin right after its snapshot.
func TestDeposedLeaderWithoutLogBeforeItsSnapshotCatchesUp(t *testing.T) {
	network := NewNetwork()
	ids := []raft.ServerID{"n1", "n2", "n3"}
	stores := map[raft.ServerID]raftlog.Stores{}
	members := map[raft.ServerID]*member{}
	long := func(c *Config, _ *Environment) { c.TrailingEntries = 1000 }
	for _, id := range ids {
		stores[id] = memoryStores()
		members[id] = startMember(t, network, id, servers(ids...), stores[id], long)
	}
	old := leader(t, members["n1"], members["n2"], members["n3"])
	id := old.ID()
	for i := range 20 {
		old.must(t, set(fmt.Sprint("k", i), "v"))
	}
	if err := old.Snapshots().Create(); err != nil {
		t.Fatal(err)
	}
	crashed, crash := context.WithCancel(t.Context())
	crash() // so that Close transfers no leadership, which would append entries
	_ = old.Close(crashed)
	list, err := stores[id].Snapshots.List()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	// Replace the log by four uncommitted entries right after the snapshot.
	log := checked(t, stores[id].Log)
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
		if err := log.StoreLog(&raft.Log{
			Index: list[0].Index + 1 + i, Term: list[0].Term,
			Type: raft.LogNoop,
		}); err != nil {
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
	testwait.Within(t, 20*time.Second, "it has what the leader has",
		func() bool { return back.Status().State.Index >= next.Status().State.Index })
}
