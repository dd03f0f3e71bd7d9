package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"holdfast/cluster/wal"
	"holdfast/internal/durable"
)

// Stores are the stores of what a member must not lose at a restart.
type Stores struct {
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
	// Offered holds a fingerprint of the settings that this node last proposed to the cluster
	// (package offer).
	Offered OfferStore
	// MarkDiverged makes OpenStores fail with ErrMarkedDiverged from now on. It may be nil.
	MarkDiverged func(reason error) error
	Close        func() error
}

// HasState reports whether the stores belong to a member of a cluster. It is false if they hold
// only the term that an interrupted bootstrap wrote.
func (s *Stores) HasState() (bool, error) {
	has, err := raft.HasExistingState(s.Log, s.Stable, s.Snapshots)
	if err == nil && has {
		var interrupted bool
		interrupted, err = s.bootstrapInterrupted()
		has = !interrupted
	}
	if err != nil {
		return false, fmt.Errorf("look for existing state: %w", err)
	}
	return has, nil
}

// ResetInterruptedBootstrap removes the term that an interrupted bootstrap has left, because
// raft.BootstrapCluster refuses stores that have a term. Without an interrupted bootstrap it
// changes nothing.
func (s *Stores) ResetInterruptedBootstrap() error {
	interrupted, err := s.bootstrapInterrupted()
	if err == nil && interrupted {
		err = s.Stable.SetUint64([]byte(keyCurrentTerm), 0)
	}
	if err != nil {
		return fmt.Errorf("reset interrupted bootstrap: %w", err)
	}
	return nil
}

// bootstrapInterrupted reports whether the process ended within raft.BootstrapCluster, which writes
// the term before the first log entry. The term cannot be from an election: the first election of a
// bootstrapped cluster is in a later term.
func (s *Stores) bootstrapInterrupted() (bool, error) {
	const bootstrapTerm = 1
	term, err := s.Stable.GetUint64([]byte(keyCurrentTerm))
	if err != nil {
		return false, ignoreNotFound(err)
	}
	if term != bootstrapTerm {
		return false, nil
	}
	lastTerm, _, err := s.LastEntry()
	return lastTerm == 0, err
}

// LastEntry returns the term and the index of the last entry that the member has: that of the log,
// or of the newest snapshot if that is newer. The log's last index is lower than that of the newest
// snapshot if the process was killed while it installed the snapshot.
func (s *Stores) LastEntry() (term, index uint64, err error) {
	last, err := lastEntry(s.Log)
	if err != nil {
		return 0, 0, err
	}
	snapshots, err := s.Snapshots.List()
	if err != nil {
		return 0, 0, err
	}
	if len(snapshots) > 0 && snapshots[0].Index > last.index {
		return snapshots[0].Term, snapshots[0].Index, nil
	}
	return last.term, last.index, nil
}

// OfferStore stores which settings a node last offered to the cluster: a fingerprint of them
// (package offer). It is used by one goroutine at a time.
type OfferStore interface {
	// Load returns what was saved last, and nil if nothing was.
	Load() ([]byte, error)
	// Save replaces what was saved before. When it returns nil, the data is on the disk.
	Save([]byte) error
}

// ErrMarkedDiverged says that this member's state and the cluster's log differed, so it must not go
// on with its data.
var ErrMarkedDiverged = errors.New(
	"this member's data and the cluster's differ: find out which members are right " +
		"(see \"replicas that differ\" in the documentation), and empty the data folder of each other one")

// divergedFile is in a data folder that must not be opened. It has the reason.
const divergedFile = "diverged"

// ErrLocked says that another process uses the data folder.
var ErrLocked = errors.New("the data folder is in use by another process")

// retainedSnapshots is how many snapshots are kept: the newest, and one in case it is damaged.
const retainedSnapshots = 2

// OpenStores opens the stores in a folder, and creates the folder if it is missing. The error wraps
// ErrOtherStore if the folder has a log of another kind, ErrLocked if another process uses it, and
// ErrShortened if the end of the log is missing.
func OpenStores(dataDir string, kind Kind, log *slog.Logger) (Stores, error) {
	stores, err := openFolder(dataDir, kind, log)
	if err != nil {
		return Stores{}, fmt.Errorf("open stores: %w", err)
	}
	return stores, nil
}

func openFolder(dataDir string, kind Kind, log *slog.Logger) (Stores, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return Stores{}, err
	}
	lock, err := lockFolder(dataDir)
	if err != nil {
		return Stores{}, err
	}
	var store *markedLog
	if err = checkDiverged(dataDir); err == nil {
		store, err = openLog(dataDir, kind.resolve(dataDir), log)
	}
	if err != nil {
		return Stores{}, errors.Join(err, lock.Close())
	}
	if err := makePrivate(filepath.Join(dataDir, "snapshots")); err != nil {
		return Stores{}, errors.Join(err, store.Close(), lock.Close())
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dataDir, retainedSnapshots, Logger(log))
	if err != nil {
		return Stores{}, errors.Join(err, store.Close(), lock.Close())
	}
	if err := durable.SyncDir(dataDir); err != nil { // the names of the folders in it
		return Stores{}, errors.Join(err, store.Close(), lock.Close())
	}
	return Stores{
		Log: store, Stable: store, Snapshots: fileSnapshots{snapshots, dataDir},
		Offered: offerFile(filepath.Join(dataDir, "offered")),
		Close:   func() error { return errors.Join(store.Close(), lock.Close()) },
		MarkDiverged: func(reason error) error {
			return durable.WriteFile(filepath.Join(dataDir, divergedFile),
				[]byte(reason.Error()+"\n"))
		},
	}, nil
}

// makePrivate makes a folder that only this user can read. raft would make it readable by
// everybody, and its files, too.
func makePrivate(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	return os.Chmod(folder, 0o700)
}

// checkDiverged returns ErrMarkedDiverged if the data folder is marked.
func checkDiverged(dataDir string) error {
	file := filepath.Join(dataDir, divergedFile)
	reason, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(fmt.Errorf("%w: %s: %s", ErrMarkedDiverged, file, bytes.TrimSpace(reason)),
		err)
}

// openLog opens the log of a kind, with its end mark. The data folder must be locked.
func openLog(dataDir string, kind Kind, log *slog.Logger) (*markedLog, error) {
	if kind.other().exists(dataDir) {
		return nil, fmt.Errorf("%s: %w", kind.other().path(dataDir), ErrOtherStore)
	}
	if !kind.exists(dataDir) {
		// the end mark of a log that is gone, which a crash may leave, must not apply to the new
		// log
		if err := removeMark(dataDir); err != nil {
			return nil, err
		}
	}
	opened, err := kind.open(kind.path(dataDir))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind.path(dataDir), err)
	}
	store, err := openMarked(opened, wal.Dir(dataDir), log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind.path(dataDir), err)
	}
	return store, nil
}

// OpenLog opens a write-ahead log with its end mark, as OpenStores does, in a folder that is handed
// in. votes is where the term and the vote are kept. The log is opened once at a time.
func OpenLog(config wal.Config, votes raft.StableStore, log *slog.Logger) (raft.LogStore, error) {
	opened, err := wal.Open(config)
	if err != nil {
		return nil, err
	}
	return openMarked(&walStore{opened, votes, io.NopCloser(nil)}, config.Folder, log)
}

type offerFile string

func (f offerFile) Load() ([]byte, error) {
	data, err := os.ReadFile(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func (f offerFile) Save(data []byte) error { return durable.WriteFile(string(f), data) }
