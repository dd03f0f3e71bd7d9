package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/replica"
	"holdfast/fsm"
	"holdfast/internal/testwait"
)

// A new leader that does not know yet what the follower has sends a snapshot that is older than the
// follower's, and then the entries after it. The follower keeps its state, and takes what is new to
// it.
func TestOlderSnapshotIsNotRestored(t *testing.T) {
	network := NewNetwork()
	members := map[raft.ServerID]*member{}
	for _, id := range []raft.ServerID{"n1", "n2"} {
		members[id] = startMember(t, network, id, servers("n1", "n2"), memoryStores(),
			func(config *Config, _ *Environment) { config.TrailingEntries = 1 })
	}
	lead := leader(t, members["n1"], members["n2"])
	follower := members["n1"]
	if follower == lead {
		follower = members["n2"]
	}
	write := func(from, to int) (last uint64) {
		for i := from; i < to; i++ {
			lead.must(t, set(fmt.Sprint("k", i), "v"))
		}
		return lead.raftForTest().LastIndex()
	}
	reach := func(index uint64) {
		t.Helper()
		testwait.Within(t, 20*time.Second, fmt.Sprintf("the follower has applied %d", index),
			func() bool { return follower.Status().State.Index >= index })
	}
	reach(write(0, 10))
	older := lead.raftForTest().Snapshot()
	if err := older.Error(); err != nil {
		t.Fatal(err)
	}
	applied := write(10, 20)
	reach(applied)
	if err := follower.raftForTest().Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if first, err := follower.env.Stores.Log.FirstIndex(); err != nil || first+1 < applied {
		t.Fatalf("the follower's log begins at %d: %v", first, err)
	}
	ended, end := context.WithCancel(t.Context())
	end() // so that Close does not transfer the leadership
	if err := lead.Close(ended); err != nil {
		t.Fatal(err)
	}
	applied = lead.Status().State.Index // it may have committed entries of its own since
	before := follower.Status().State.Index

	// From here on the test is the leader of a later term.
	term := follower.raftForTest().CurrentTerm() + 100
	wire := network.Transport("n3", DefaultConfig().Timing)
	header := raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n3"),
		Addr: []byte("n3"),
	}
	meta, content, err := older.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	install := raft.InstallSnapshotRequest{
		RPCHeader: header, SnapshotVersion: meta.Version, Term: term, LastLogIndex: meta.Index,
		LastLogTerm:        meta.Term,
		Configuration:      raft.EncodeConfiguration(meta.Configuration),
		ConfigurationIndex: meta.ConfigurationIndex, Size: meta.Size,
	}
	var installed raft.InstallSnapshotResponse
	if err := wire.InstallSnapshot(follower.ID(), raft.ServerAddress(follower.ID()), &install,
		&installed, content); err != nil || !installed.Success || installed.Term != term {
		t.Fatalf("%+v, %v", installed, err)
	}
	if now := follower.Status().State.Index; now < before {
		t.Errorf("the follower goes on from index %d and had applied %d", now, before)
	}
	previous, added := raft.Log{Index: meta.Index, Term: meta.Term}, []*raft.Log{}
	for index := meta.Index + 1; index <= applied; index++ {
		entry := &raft.Log{}
		if err := lead.env.Stores.Log.GetLog(index, entry); err != nil {
			t.Fatal(err)
		}
		added = append(added, entry)
	}
	added = append(added, &raft.Log{Index: applied + 1, Term: term, Type: raft.LogNoop},
		&raft.Log{Index: applied + 2, Term: term, Type: raft.LogNoop})
	for len(added) > 0 {
		batch := added[:min(3, len(added))]
		request := raft.AppendEntriesRequest{
			RPCHeader: header, Term: term, PrevLogEntry: previous.Index, PrevLogTerm: previous.Term,
			Entries: batch, LeaderCommitIndex: applied + 2,
		}
		var appended raft.AppendEntriesResponse
		if err := wire.AppendEntries(follower.ID(), raft.ServerAddress(follower.ID()), &request,
			&appended); err != nil || !appended.Success {
			t.Fatalf("entries behind %d: %+v, %v", previous.Index, appended, err)
		}
		previous, added = *batch[len(batch)-1], added[len(batch):]
	}
	if commit, last := follower.raftForTest().CommitIndex(),
		follower.raftForTest().LastIndex(); commit != applied+2 || last != applied+2 {
		t.Errorf("committed %d, last %d, want %d", commit, last, applied+2)
	}
	if keys := follower.Status().State.Keys; keys != 20 {
		t.Errorf("%d keys", keys)
	}
}

// A backup of a newer version of the log than the one in force is refused: a member that does not
// know the version could not read it, and the replicas would differ.
func TestBackupOfANewerVersionIsRefused(t *testing.T) {
	start := func(version uint32) []byte {
		return fsm.AppendEntry(nil,
			&fsm.Entry{Commands: []fsm.Command{{
				Kind: fsm.KindLeaderStart, Nonce: 1,
				Version: version,
			}}})
	}
	newer := fsm.New()
	if _, err := newer.Apply(1, 1, start(fsm.Version)); err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	snapshot := newer.Snapshot()
	defer snapshot.Release()
	if err := snapshot.Write(&saved); err != nil {
		t.Fatal(err)
	}
	state := replica.New(replica.Environment{
		Applied:      func(*fsm.EntryOutcome) {},
		ObserveApply: func(*fsm.EntryOutcome, time.Duration) {}, WallAdvanced: func(int64) {},
		Monotonic: func() time.Duration { return 0 }, Exit: func(err error) { t.Error(err) },
	})
	state.Apply(&raft.Log{Index: 1, Term: 1, Type: raft.LogCommand, Data: start(fsm.Version - 1)})
	if in := state.Status().Version; in != fsm.Version-1 {
		t.Fatalf("version %d is in force", in)
	}
	defer func() {
		if recover() != nil { // it goes on, and finds no members
			t.Error("the restore begins")
		}
	}()
	if err := (&Snapshots{state: state}).Restore(t.Context(), &saved); !errors.Is(err,
		peer.ErrRefused) {
		t.Errorf("%v", err)
	}
}
