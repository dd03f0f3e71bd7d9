package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// Kind is a kind of log store: a value of the setting cluster.logStore.
type Kind string

// The log stores. BoltDB syncs twice for each batch of entries. WAL only appends, and syncs once. Both keep the term and the vote in a BoltDB file. WAL allocates
// disk space in segments of segmentSize.
const (
	// Auto is the store that a data folder already has, and WAL if it has none.
	Auto   Kind = "auto"
	BoltDB Kind = "boltdb"
	WAL    Kind = "wal"
)

// resolve returns k itself or, for Auto, the store of a data folder. path, exists, open and other must not be called on Auto.
func (k Kind) resolve(dataDir string) Kind {
	switch {
	case k != Auto:
		return k
	case BoltDB.exists(dataDir):
		return BoltDB
	}
	return WAL
}

// Names in the data folder.
const (
	boltFile         = "raft.db"
	walFolder        = "wal"
	convertingSuffix = ".converting" // suffix of a log that ConvertLog is writing
	removingSuffix   = ".removing"   // suffix of a log that ConvertLog has replaced
)

// ErrOtherStore says that a data folder has a log of another kind than the configured one.
var ErrOtherStore = errors.New("the data folder has a log of another kind than cluster.logStore: convert it with `holdfast raft convert-log` while the node is stopped, or change cluster.logStore")

// ErrTwoLogs says that a data folder has two logs, and that the one of the kind to convert to is older than the other.
var ErrTwoLogs = errors.New("the data folder has two logs, and the one that cluster.logStore names ends before the other: move the one that is not wanted out of the folder")

func (k Kind) path(dataDir string) string {
	if k == WAL {
		return filepath.Join(dataDir, walFolder)
	}
	return filepath.Join(dataDir, boltFile)
}

func (k Kind) other() Kind {
	if k == WAL {
		return BoltDB
	}
	return WAL
}

// exists reports whether a data folder has a log of this kind. It returns true if it cannot tell: a node that has a log must not start as a new one.
func (k Kind) exists(dataDir string) bool {
	file := k.path(dataDir)
	if k == WAL {
		file = filepath.Join(file, metadb.FileName)
	}
	_, err := os.Stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// HasLog reports whether a data folder has the log of a member. It returns true if it cannot tell.
func HasLog(dataDir string) bool { return BoltDB.exists(dataDir) || WAL.exists(dataDir) }

// logAndVotes is what raft needs of a log store: the log, and the term and the vote.
type logAndVotes interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// open opens the store at a path, and creates it if it is missing.
func (k Kind) open(path string, log *slog.Logger) (logAndVotes, error) {
	if k == WAL {
		return openWAL(path, log)
	}
	store, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout: 2 * time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s", ErrLocked, path)
	}
	if err != nil { // a nil *BoltStore in the interface would not be nil
		return nil, err
	}
	return store, nil
}

// walStore is a WAL whose folder is locked. raft-wal itself locks only its metadata, and bbolt would wait for that lock for ever.
type walStore struct {
	*wal.WAL
	path string
	meta *metadb.BoltMetaDB // the WAL's metadata; Close closes it, too, because not every version of raft-wal does
	lock *os.File
	// unlisted are the segments that renameUnlisted renamed when the WAL was opened.
	unlisted []string
}

func openWAL(path string, log *slog.Logger) (logAndVotes, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(lock); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), lock.Close())
	}
	meta := &metadb.BoltMetaDB{}
	var unlisted []string
	for _, prepare := range []func() error{
		func() error { return syncFiles(path) }, // first: the others change files according to what they read
		func() error { return mendWAL(path, meta) },
		func() error { return trimSealed(path, meta) },
		func() (err error) { unlisted, err = renameUnlisted(path, meta); return err },
	} {
		if err = prepare(); err != nil {
			break
		}
	}
	var store *wal.WAL
	if err == nil {
		store, err = wal.Open(path, wal.WithLogger(Logger(log)), wal.WithMetaStore(meta), wal.WithSegmentSize(segmentSize))
	}
	if err != nil {
		return nil, errors.Join(err, meta.Close(), lock.Close())
	}
	return &walStore{store, path, meta, lock, unlisted}, nil
}

// StoreLogs implements raft.LogStore. It appends at most appendLimit bytes at a time; a larger entry is appended alone.
func (w *walStore) StoreLogs(logs []*raft.Log) error {
	for len(logs) > 0 {
		count, size := 1, len(logs[0].Data)
		for count < len(logs) && size+len(logs[count].Data) <= appendLimit {
			size += len(logs[count].Data)
			count++
		}
		if err := w.WAL.StoreLogs(logs[:count]); err != nil {
			return err
		}
		logs = logs[count:]
	}
	return nil
}

// DeleteRange implements raft.LogStore.
func (w *walStore) DeleteRange(first, last uint64) error {
	if err := w.WAL.DeleteRange(first, last); err != nil {
		return err
	}
	return trimSealed(w.path, w.meta)
}

// Close closes the log, then unlocks the folder.
func (w *walStore) Close() error { return errors.Join(w.WAL.Close(), w.meta.Close(), w.lock.Close()) }
