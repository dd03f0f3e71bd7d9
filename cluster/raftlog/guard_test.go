package raftlog

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// A stored term is never replaced by an older one. Raft may handle a heartbeat outside of its main
// goroutine, which meanwhile starts an election in a newer term.
func TestTermNeverGoesBack(t *testing.T) {
	var exits []error
	store := NewStableStore(raft.NewInmemStore(),
		Guard{Deadline: time.Minute, Exit: func(err error) { exits = append(exits, err) }})
	for _, term := range []uint64{3, 3, 4} {
		if err := store.SetUint64([]byte("CurrentTerm"), term); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.SetUint64([]byte("CurrentTerm"), 3); !errors.Is(err, ErrTermBack) ||
		errors.Is(err, ErrDisk) || len(exits) != 1 {
		t.Errorf("%v, the process ends with %v", err, exits)
	}
	if term, err := store.GetUint64([]byte("CurrentTerm")); err != nil || term != 4 {
		t.Errorf("term %d, %v", term, err)
	}
}

// unreadable is a stable store whose values cannot be read.
type unreadable struct{ *raft.InmemStore }

func (unreadable) GetUint64([]byte) (uint64, error) { return 0, errors.New("input/output error") }

// If the stored term cannot be read, no term is written: it could be older than the stored one.
func TestTermIsNotWrittenUnread(t *testing.T) {
	var exits []error
	store := NewStableStore(unreadable{raft.NewInmemStore()},
		Guard{Deadline: time.Minute, Exit: func(err error) { exits = append(exits, err) }})
	if err := store.SetUint64([]byte("CurrentTerm"), 3); !errors.Is(err, ErrDisk) ||
		len(exits) != 1 {
		t.Errorf("%v, exits %v", err, exits)
	}
}

// hangingLog is a log store whose writes wait until release is closed, or fail with err.
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
		t.Run(test.name, func(t *testing.T) {
			exits := make(chan error, 1)
			test.disk.LogStore = raft.NewInmemStore()
			log := NewCheckedLog(test.disk,
				Guard{Deadline: 50 * time.Millisecond, Exit: func(err error) { exits <- err }}, 100)
			done := make(chan error, 1)
			go func() { done <- log.StoreLogs([]*raft.Log{{Index: 1, Type: raft.LogNoop}}) }()
			if err := <-exits; !errors.Is(err, ErrDisk) {
				t.Errorf("%s: %v", test.name, err)
			}
			if test.disk.release != nil {
				close(test.disk.release)
			}
			<-done
		})
	}
}

func TestCheckedLogCacheIsBounded(t *testing.T) {
	log := NewCheckedLog(raft.NewInmemStore(), Guard{Deadline: time.Minute}, 10_000)
	entry := func(index uint64) *raft.Log {
		return &raft.Log{
			Index: index, Type: raft.LogCommand,
			Data: fsm.AppendEntry(nil,
				&fsm.Entry{Commands: []fsm.Command{{
					Kind: fsm.KindSet, Key: []byte("k"),
					Value: make([]byte, 900),
				}}}),
		}
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
	if err := log.DeleteRange(90, 100); err != nil || log.LastCommand(100, 5) != 89 ||
		log.LastCommand(20, 5) != 20 || log.LastCommand(4, 5) != 0 {
		t.Errorf("%v, %d", err, log.LastCommand(100, 5))
	}
}

func TestStoresAreLocked(t *testing.T) {
	for _, kind := range []Kind{BoltDB, WAL} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			stores, err := OpenStores(dir, kind, quiet())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := OpenStores(dir, kind, quiet()); !errors.Is(err, ErrLocked) {
				t.Errorf("%s: %v", kind, err)
			}
			if _, err := ConvertLog(t.Context(), dir, kind.other()); !errors.Is(err, ErrLocked) {
				t.Errorf("%s: converted: %v", kind, err)
			}
			if err := stores.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A process that was stopped (SIGSTOP) for longer than the deadline of a disk write goes on. The
// deadline is counted in parts, and a stop uses up one.
func TestStoppedProcessDoesNotCountAsWaitingForTheDisk(t *testing.T) {
	exits := make(chan error, 10)
	guard := Guard{Deadline: 100 * time.Hour, Exit: func(err error) { exits <- err }}
	watch := guard.watch("log")
	watch.tick() // however late the timer fires: a stop of any length uses up one part
	if len(exits) != 0 {
		t.Fatal("one part of the deadline ended the process")
	}
	for range watchParts - 1 {
		watch.tick()
	}
	if err := <-exits; !errors.Is(err, ErrDisk) {
		t.Error(err)
	}
	watch.stop()
	ended := guard.watch("log")
	ended.stop()
	for range watchParts {
		ended.tick()
	}
	if len(exits) != 0 {
		t.Error("a call that has ended ends the process")
	}
}
