package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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

// entries returns log entries from one index to another. The term of each is its index.
func entries(from, to uint64) (logs []*raft.Log) {
	for index := from; index <= to; index++ {
		logs = append(logs, &raft.Log{Index: index, Term: index, Type: raft.LogNoop})
	}
	return logs
}

// hasEntries checks that a log has the entries that entries(1, last) returns.
func hasEntries(t *testing.T, log raft.LogStore, last uint64) {
	t.Helper()
	for index := uint64(1); index <= last; index++ {
		var got raft.Log
		if err := log.GetLog(index, &got); err != nil || got.Index != index || got.Term != index {
			t.Errorf("entry %d: index %d, term %d, %v", index, got.Index, got.Term, err)
		}
	}
}

// Stores belong to a member if they have an entry, a snapshot or the term of an election. The term
// alone that raft.BootstrapCluster writes before the first entry does not count: the bootstrap was
// interrupted, and starts again.
func TestTermOfAnInterruptedBootstrapIsNoState(t *testing.T) {
	term := func(term uint64) func(*Stores) error {
		return func(s *Stores) error { return s.Stable.SetUint64([]byte(keyCurrentTerm), term) }
	}
	entry := func(s *Stores) error { return s.Log.StoreLogs(entries(1, 1)) }
	for name, tc := range map[string]struct {
		write []func(*Stores) error
		want  bool
	}{
		"nothing":              {},
		"bootstrap term alone": {write: []func(*Stores) error{term(1)}},
		"bootstrap complete":   {write: []func(*Stores) error{term(1), entry}, want: true},
		"term of an election":  {write: []func(*Stores) error{term(2)}, want: true},
	} {
		for _, kind := range []Kind{WAL, BoltDB} {
			t.Run(name+"/"+string(kind), func(t *testing.T) {
				dir := t.TempDir()
				stores := openStores(t, dir, kind)
				for _, write := range tc.write {
					if err := write(&stores); err != nil {
						t.Fatal(err)
					}
				}
				if err := stores.Close(); err != nil {
					t.Fatal(err)
				}
				stores = openStores(t, dir, kind)
				if has, err := stores.HasState(); err != nil || has != tc.want {
					t.Errorf("has state: %t, %v", has, err)
				}
				if err := stores.ResetInterruptedBootstrap(); err != nil {
					t.Error(err)
				}
				if has, err := raft.HasExistingState(stores.Log, stores.Stable,
					stores.Snapshots); err != nil || has != tc.want {
					t.Errorf("after the reset: %t, %v", has, err)
				}
				if err := stores.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A conflict with a new leader cuts the end of the log off, and what is left can be read when the
// node is started again.
func TestWALIsCutAndRead(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, WAL)
	err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Log.DeleteRange(9, 10),
		stores.Log.StoreLogs(entries(9, 12)), stores.Close())
	if err != nil {
		t.Fatal(err)
	}
	stores = openStores(t, dir, WAL)
	hasEntries(t, stores.Log, 12)
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
}

// A node that ended while it installed a snapshot has a log that ends before the snapshot. Raft
// then stores entries after the snapshot. A WAL cannot have a gap, so the old entries are deleted
// first.
func TestWALGoesOnBehindASnapshot(t *testing.T) {
	stores := openStores(t, t.TempDir(), WAL)
	log := NewCheckedLog(stores.Log,
		Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 1000)
	if err := errors.Join(log.StoreLogs(entries(1, 5)),
		log.StoreLogs(entries(35, 36))); err != nil {
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

// The last entry is that of the snapshot if the log ends before it.
func TestLastEntryMayBeInTheSnapshot(t *testing.T) {
	stores := openStores(t, t.TempDir(), WAL)
	if err := stores.Log.StoreLogs(entries(1, 5)); err != nil {
		t.Fatal(err)
	}
	for _, snapshot := range []uint64{3, 9} {
		sink, err := stores.Snapshots.Create(raft.SnapshotVersionMax, snapshot, snapshot,
			raft.Configuration{}, 1, nil)
		if err = errors.Join(err, sink.Close()); err != nil {
			t.Fatal(err)
		}
		if term, index, err := stores.LastEntry(); err != nil || index != max(5, snapshot) ||
			term != index {
			t.Errorf("with a snapshot at %d: term %d, index %d, %v", snapshot, term, index, err)
		}
	}
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
}

// ConvertLog copies only the entries after the gap that raft leaves in boltdb when it installs a
// snapshot. It fails if the folder already has a log of the new kind that is older than the other
// one.
func TestConvertLogSkipsAGapAndRefusesTwoLogs(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, BoltDB)
	if err := errors.Join(stores.Log.StoreLogs(entries(1, 5)),
		stores.Log.StoreLogs(entries(35, 40)), stores.Close()); err != nil {
		t.Fatal(err)
	}
	empty, err := WAL.open(WAL.path(dir))
	if err = errors.Join(err, empty.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := ConvertLog(t.Context(), dir, WAL); !errors.Is(err, ErrTwoLogs) {
		t.Errorf("an empty log has replaced the other: %v", err)
	}
	if err := os.RemoveAll(WAL.path(dir)); err != nil {
		t.Fatal(err)
	}
	if converted, err := ConvertLog(t.Context(), dir, WAL); !converted || err != nil {
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

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// † On a follower with a snapshot, GetLog returns a placeholder for a missing entry: at the
// snapshot's index with the snapshot's term, and elsewhere with term 0, which no leader's entry
// has. A placeholder is never stored.
func TestFollowersLogAnswersForWhatItLacks(t *testing.T) {
	store := raft.NewInmemStore()
	log := NewCheckedLog(store,
		Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 0)
	noop := func(index, term uint64) *raft.Log {
		return &raft.Log{
			Index: index, Term: term,
			Type: raft.LogNoop,
		}
	}
	if err := log.StoreLogs([]*raft.Log{noop(5, 1), noop(6, 1)}); err != nil {
		t.Fatal(err)
	}
	if err := log.GetLog(4, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("without a snapshot: %v", err)
	}
	log.SetFollowerSnapshot(func() (uint64, uint64) { return 6, 2 })
	for index, term := range map[uint64]uint64{4: 0, 5: 1, 6: 2, 7: 0} {
		t.Run(fmt.Sprintf("index %v", index), func(t *testing.T) {
			got := raft.Log{}
			if err := log.GetLog(index, &got); err != nil || got.Index != index ||
				got.Term != term {
				t.Errorf("at %d: %+v, %v; want term %d", index, got, err, term)
			}
			if err := log.StoreLog(&got); index != 5 && !errors.Is(err, ErrPlaceholder) {
				t.Errorf("a placeholder at %d is stored: %v", index, err)
			}
		})
	}
}

// Close of a snapshot fails if a newer snapshot was closed while this one was written. Otherwise
// raft would record the older one as its last snapshot.
func TestOlderSnapshotIsGivenUp(t *testing.T) {
	var sizes []int64
	store, err := NewSnapshotStore(raft.NewInmemSnapshotStore(),
		func(bytes int64) { sizes = append(sizes, bytes) })
	if err != nil {
		t.Fatal(err)
	}
	create := func(index uint64) raft.SnapshotSink {
		sink, err := store.Create(1, index, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write(make([]byte, index)); err != nil {
			t.Fatal(err)
		}
		return sink
	}
	for _, index := range []uint64{10, 20, 30} {
		sink := create(index)
		if err := errors.Join(sink.Close(), sink.Close()); err != nil {
			t.Fatal(err)
		}
	}
	slow := create(35)
	if err := create(40).Close(); err != nil {
		t.Fatal(err)
	}
	if err := slow.Close(); !errors.Is(err, ErrOlderSnapshot) {
		t.Errorf("%v", err)
	}
	for upTo, want := range map[uint64]uint64{100: 40, 40: 40, 39: 30, 30: 30, 29: 0} {
		t.Run(fmt.Sprintf("up to %d", upTo), func(t *testing.T) {
			// keys are the arguments of Newest; two snapshots are retained
			if index, _ := store.Newest(upTo); index != want {
				t.Errorf("the newest up to %d is %d, want %d", upTo, index, want)
			}
		})
	}
	if !slices.Equal(sizes, []int64{10, 20, 30, 40}) {
		t.Errorf("told of %d", sizes)
	}
}

// Snapshots hold all values: nobody else can read them, whoever made the data folder.
func TestSnapshotsArePrivate(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "snapshots"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), openStores(t, dir, WAL).Close()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "snapshots")); err != nil ||
		info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Of two logs, the one that stays must not end before the other, also where their last terms are
// the same.
func TestConvertLogRefusesAShorterLogOfTheSameTerm(t *testing.T) {
	dir := t.TempDir()
	for kind, count := range map[Kind]uint64{BoltDB: 5, WAL: 3} {
		only := t.TempDir()
		stores := openStores(t, only, kind)
		err := stores.Stable.SetUint64([]byte(keyCurrentTerm), 2)
		for index := uint64(1); index <= count; index++ {
			err = errors.Join(err,
				stores.Log.StoreLog(&raft.Log{Index: index, Term: 2, Type: raft.LogNoop}))
		}
		err = errors.Join(err, stores.Close(),
			os.Rename(kind.path(only), filepath.Join(dir, filepath.Base(kind.path(only)))))
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ConvertLog(t.Context(), dir, WAL); !errors.Is(err, ErrTwoLogs) {
		t.Errorf("%v: the log that has entries 4 and 5 is gone", err)
	}
}
