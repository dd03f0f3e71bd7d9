package raftlog

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// † What the state has is never replaced by another leader's entries: an applied entry is
// committed. Compaction, and an installed snapshot, delete what is in a snapshot.
func TestAppliedEntriesAreNotReplaced(t *testing.T) {
	for name, test := range map[string]struct {
		first, last       uint64
		applied, snapshot uint64
		refused           bool
	}{
		"a conflict behind what is applied":           {9, 10, 8, 3, false},
		"a conflict with an applied entry":            {8, 10, 8, 3, true},
		"a conflict from the first entry on":          {1, 10, 8, 0, true},
		"a conflict in the whole log":                 {0, 99, 1, 0, true},
		"compaction":                                  {1, 5, 8, 5, false},
		"compaction of everything":                    {1, 10, 10, 10, false},
		"an installed snapshot, behind the log":       {1, 10, 12, 12, false},
		"an installed snapshot within another's log":  {1, 10, 6, 6, false},
		"a snapshot on the disk that is not restored": {1, 10, 4, 6, false},
		"nothing is applied":                          {1, 10, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var ended error
			log := NewCheckedLog(raft.NewInmemStore(),
				Guard{Deadline: time.Minute, Exit: func(err error) { ended = err }}, 0)
			log.SetReplica(func() (uint64, uint64) { return test.applied, test.snapshot })
			if err := log.StoreLogs(entries(1, 10)); err != nil {
				t.Fatal(err)
			}
			err := log.DeleteRange(test.first, test.last)
			if errors.Is(err, ErrDiverged) != test.refused ||
				errors.Is(ended, ErrDiverged) != test.refused {
				t.Errorf("%v, the process ends with %v", err, ended)
			}
			if last, _ := log.LastIndex(); test.refused && last != 10 {
				t.Errorf("the log ends at %d: entries were deleted", last)
			}
		})
	}
}

// † A snapshot that ends while raft compares entries that it has already is no conflict: nothing is
// deleted, and the process goes on.
func TestCompactionDuringAComparisonIsNoConflict(t *testing.T) {
	log := NewCheckedLog(raft.NewInmemStore(),
		Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 0)
	log.SetReplica(func() (uint64, uint64) { return 9, 6 })
	log.SetFollowerSnapshot(func() (uint64, uint64) { return 6, 6 })
	if err := log.StoreLogs(entries(1, 10)); err != nil {
		t.Fatal(err)
	}
	var entry raft.Log
	if err := log.GetLog(2, &entry); err != nil || entry.Term != 2 { // raft has compared this one
		t.Fatal(err)
	}
	if err := log.DeleteRange(1, 5); err != nil { // compaction
		t.Fatal(err)
	}
	if err := log.GetLog(3, &entry); err != nil || entry.Term == 3 {
		t.Fatalf("%v: it is still there", err)
	}
	if err := log.DeleteRange(3, 10); !errors.Is(err, ErrCompacted) {
		t.Errorf("%v, want ErrCompacted", err)
	}
	if last, _ := log.LastIndex(); last != 10 {
		t.Errorf("the log ends at %d", last)
	}
}

// A data folder whose state differs from the cluster's log is not opened again: raft would replace
// the entries.
func TestMarkedFolderIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, WAL)
	if err := errors.Join(stores.MarkDiverged(ErrDiverged), stores.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := OpenStores(dir, WAL, quiet()); !errors.Is(err, ErrMarkedDiverged) {
			t.Errorf("%v, want ErrMarkedDiverged", err)
		}
	}
}
