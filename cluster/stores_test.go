package cluster

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/raftlog"
	"holdfast/fsm"
)

// † A flipped bit in the log halts the node that has it: raft-boltdb has no checksum.
func TestFlippedBitHalts(t *testing.T) {
	store := raft.NewInmemStore()
	stores := memoryStores()
	stores.Log, stores.Stable = store, store
	m := startMember(t, NewNetwork(), "n1", servers("n1"), stores)
	leader(t, m).must(t, set("k", "v"))
	last, _ := store.LastIndex()
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var log raft.Log
	if err := store.GetLog(last, &log); err != nil {
		t.Fatal(err)
	}
	log.Data = bytes.Clone(log.Data)
	log.Data[len(log.Data)/2] ^= 4
	if err := store.StoreLog(&log); err != nil {
		t.Fatal(err)
	}
	exits := make(chan error, 16)
	checked := raftlog.NewCheckedLog(store,
		raftlog.Guard{Deadline: time.Minute, Exit: func(err error) { exits <- err }}, 100)
	damaged := log
	if err := checked.GetLog(last, &log); err != nil || log.Data != nil ||
		!errors.Is(<-exits, fsm.ErrDamaged) {
		// raft would panic on an error, and the entry must not be applied
		t.Errorf("read: %v, %+v", err, log)
	}
	log = damaged
	if err := checked.StoreLog(&log); !errors.Is(err, fsm.ErrDamaged) ||
		!errors.Is(<-exits, fsm.ErrDamaged) {
		t.Errorf("stored: %v", err)
	}
	config := DefaultConfig()
	config.ID = "n1"
	env := m.env
	env.Stores, env.Transport = stores, NewNetwork().Transport("n1", config.Timing)
	env.Exit = func(err error) { exits <- err }
	n, err := Open(config, env, m.recorder)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-exits; !errors.Is(err, fsm.ErrDamaged) {
		t.Errorf("opened: %v", err)
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A node that ended between the term and the first entry of its bootstrap bootstraps the cluster
// when it starts again.
func TestInterruptedBootstrapIsDoneAgain(t *testing.T) {
	stores := memoryStores()
	if err := stores.Stable.SetUint64([]byte("CurrentTerm"), 1); err != nil {
		t.Fatal(err)
	}
	leader(t, startMember(t, NewNetwork(), "n1", servers("n1"), stores)).must(t, set("k", "v"))
}

// A log with a hole, as it is left when the newest snapshot turns out to be damaged, is refused
// with ErrIncomplete, not with a panic.
func TestLogWithAHoleIsRefused(t *testing.T) {
	stores := memoryStores()
	m := startMember(t, NewNetwork(), "n1", servers("n1"), stores)
	n := leader(t, m)
	for range 5 {
		n.must(t, set("k", "v"))
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stores.Log.DeleteRange(2, 3); err != nil {
		t.Fatal(err)
	}
	config := DefaultConfig()
	config.ID = "n1"
	env := m.env
	env.Transport = NewNetwork().Transport("n1", config.Timing)
	if _, err := Open(config, env, m.recorder); !errors.Is(err, ErrIncomplete) {
		t.Errorf("opened: %v", err)
	}
}
