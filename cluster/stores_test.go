package cluster

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

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
	checked := newCheckedLog(store, guard{deadline: time.Minute, exit: func(err error) { exits <- err }}, 100)
	damaged := log
	if err := checked.GetLog(last, &log); err != nil || log.Data != nil || !errors.Is(<-exits, fsm.ErrDamaged) {
		t.Errorf("read: %v, %+v", err, log) // raft would panic on an error, and the entry must not be applied
	}
	log = damaged
	if err := checked.StoreLog(&log); !errors.Is(err, fsm.ErrDamaged) || !errors.Is(<-exits, fsm.ErrDamaged) {
		t.Errorf("stored: %v", err)
	}
	config := DefaultConfig()
	config.ID = "n1"
	world := m.world
	world.Stores, world.Transport = stores, NewNetwork().Transport("n1", config.Timing)
	world.Exit = func(err error) { exits <- err }
	n, err := Open(config, world, m.recorder)
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

// † An entry that cannot be applied halts the node rather than letting its state diverge.
func TestReplicaHalts(t *testing.T) {
	m := startCluster(t, 1)[0]
	n := leader(t, m)
	before := n.replica.status()
	data := fsm.AppendEntry(nil, &fsm.Entry{Term: 1, Number: 1, Commands: []fsm.Command{{Kind: 99}}})
	if _, err := n.replica.apply(&raft.Log{Index: before.Index + 1, Term: 1, Data: data}); !errors.Is(err, fsm.ErrUnknown) {
		t.Fatal(err)
	}
	if err := <-m.exits; !errors.Is(err, ErrHalted) {
		t.Errorf("exited with %v", err)
	}
	if _, err := n.replica.apply(&raft.Log{Index: before.Index + 2}); !errors.Is(err, ErrHalted) || n.replica.status() != before {
		t.Errorf("the replica went on: %v", err)
	}
}

// Raft's heartbeats are handled beside its main goroutine: one that an election has overtaken must not put the older term back.
func TestTermNeverGoesBack(t *testing.T) {
	var exits []error
	store := deadlineStore{StableStore: raft.NewInmemStore(), terms: &sync.Mutex{}, guard: guard{deadline: time.Minute, exit: func(err error) { exits = append(exits, err) }}}
	for _, term := range []uint64{3, 3, 4} {
		if err := store.SetUint64([]byte("CurrentTerm"), term); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.SetUint64([]byte("CurrentTerm"), 3); !errors.Is(err, ErrTermBack) || len(exits) != 1 {
		t.Errorf("%v, the process ends with %v", err, exits)
	}
	if term, err := store.GetUint64([]byte("CurrentTerm")); err != nil || term != 4 {
		t.Errorf("term %d, %v", term, err)
	}
}

// hangingLog is a disk that takes its time, or fails.
type hangingLog struct {
	raft.LogStore
	release chan struct{}
	err     error
}

func (h *hangingLog) StoreLogs(logs []*raft.Log) error {
	if h.release != nil {
		<-h.release
	}
	if h.err != nil {
		return h.err
	}
	return h.LogStore.StoreLogs(logs)
}

// † A disk that hangs, or fails, ends the process.
func TestDiskEndsTheProcess(t *testing.T) {
	for _, test := range []struct {
		name string
		disk *hangingLog
	}{
		{"hangs", &hangingLog{release: make(chan struct{})}},
		{"fails", &hangingLog{err: errors.New("no space left on device")}},
	} {
		exits := make(chan error, 1)
		test.disk.LogStore = raft.NewInmemStore()
		log := newCheckedLog(test.disk, guard{deadline: 50 * time.Millisecond, exit: func(err error) { exits <- err }}, 100)
		done := make(chan error, 1)
		go func() { done <- log.StoreLogs([]*raft.Log{{Index: 1, Type: raft.LogNoop}}) }()
		if err := <-exits; !errors.Is(err, ErrDisk) {
			t.Errorf("%s: %v", test.name, err)
		}
		if test.disk.release != nil {
			close(test.disk.release)
		}
		<-done
	}
}

func TestCheckedLogCacheIsBounded(t *testing.T) {
	log := newCheckedLog(raft.NewInmemStore(), guard{deadline: time.Minute}, 10_000)
	entry := func(index uint64) *raft.Log {
		return &raft.Log{Index: index, Type: raft.LogCommand, Data: fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{set("k", string(make([]byte, 900)))}})}
	}
	for i := uint64(1); i <= 100; i++ {
		if err := log.StoreLog(entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	if log.cacheBytes > 10_000 || len(log.cache) < 5 {
		t.Errorf("%d bytes in %d entries", log.cacheBytes, len(log.cache))
	}
	for i := uint64(1); i <= 100; i++ {
		var got raft.Log
		if err := log.GetLog(i, &got); err != nil || got.Index != i {
			t.Fatalf("%d: %v, %v", i, got.Index, err)
		}
	}
	if err := log.DeleteRange(90, 100); err != nil || log.lastCommand(100, 5) != 89 || log.lastCommand(20, 5) != 20 || log.lastCommand(4, 5) != 0 {
		t.Errorf("%v, %d", err, log.lastCommand(100, 5))
	}
}

func TestStoresAreLocked(t *testing.T) {
	for _, kind := range []LogStore{BoltDB, WAL} {
		dir := t.TempDir()
		stores, err := OpenStores(dir, kind, quiet())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStores(dir, kind, quiet()); !errors.Is(err, ErrLocked) {
			t.Errorf("%s: %v", kind, err)
		}
		if _, err := ConvertLog(t.Context(), dir, kind.other(), quiet()); !errors.Is(err, ErrLocked) {
			t.Errorf("%s: converted: %v", kind, err)
		}
		if err := stores.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that was stopped, and goes on, has not been waiting for its disk: the deadline is counted in parts.
func TestStoppedProcessIsNoDeadDisk(t *testing.T) {
	exits := make(chan error, 10)
	watch := guard{deadline: 100 * time.Hour, exit: func(err error) { exits <- err }}.watch("log")
	watch.passed() // however late: a stop of any length is one part
	if len(exits) != 0 {
		t.Fatal("one part of the deadline ended the process")
	}
	for range watchParts - 1 {
		watch.passed()
	}
	if err := <-exits; !errors.Is(err, ErrDisk) {
		t.Error(err)
	}
	watch.stop()
	watch.passed()
	if len(exits) != 0 {
		t.Error("a call that has ended ends the process")
	}
}

// A log with a hole, as it is left when the newest snapshot turns out to be damaged, is refused with a word of what to do, not
// with a panic.
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
	world := m.world
	world.Transport = NewNetwork().Transport("n1", config.Timing)
	if _, err := Open(config, world, m.recorder); !errors.Is(err, ErrIncomplete) {
		t.Errorf("opened: %v", err)
	}
}
