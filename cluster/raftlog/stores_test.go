package raftlog

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func openStores(t *testing.T, dir string, kind Kind) Stores {
	t.Helper()
	stores, err := OpenStores(dir, kind, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return stores
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
	log := NewCheckedLog(stores.Log, Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 1000)
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

var _ raft.MonotonicLogStore = (*CheckedLog)(nil)

// A follower whose log begins behind its snapshot knows the term at the snapshot's index: raft looks for it in the log.
func TestSnapshotStandsForTheEntryAtItsIndex(t *testing.T) {
	store := raft.NewInmemStore()
	log := NewCheckedLog(store, Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 0)
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
	log.SetSnapshot(snapshot)
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

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
