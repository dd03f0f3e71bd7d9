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

// Kind is a way to keep the log and the votes on a disk.
type Kind string

// The log stores. BoltDB syncs twice for each write of entries, WAL, which only appends, once. Both keep the term and the vote in BoltDB. WAL takes its
// disk space in parts of segmentSize.
const (
	// Auto is the store of the log that a data folder has, and WAL in a folder without one.
	Auto   Kind = "auto"
	BoltDB Kind = "boltdb"
	WAL    Kind = "wal"
)

// in returns the store that k means in a data folder.
func (k Kind) in(dataDir string) Kind {
	switch {
	case k != Auto:
		return k
	case BoltDB.exists(dataDir):
		return BoltDB
	}
	return WAL
}

// What a log store is called in the data folder.
const (
	boltFile  = "raft.db"
	walFolder = "wal"
	// unfinished is a log that is being written by ConvertLog, and obsolete one that it has replaced.
	unfinished = ".converting"
	obsolete   = ".removing"
)

// ErrOtherStore says that a data folder has a log that is kept in another way.
var ErrOtherStore = errors.New("the data folder has a log of another cluster.logStore: stop the node, and call `holdfast raft convert-log`")

// ErrTwoLogs says that a data folder has two logs, and that the one to convert to is behind the other.
var ErrTwoLogs = errors.New("the data folder has two logs, and the one of the setting is behind the other: move one of them away")

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

// exists reports whether there is such a log. In doubt there is: a node must not take itself for new.
func (k Kind) exists(dataDir string) bool {
	file := k.path(dataDir)
	if k == WAL {
		file = filepath.Join(file, metadb.FileName)
	}
	_, err := os.Stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// HasLog reports whether a data folder holds the log of a member.
func HasLog(dataDir string) bool { return BoltDB.exists(dataDir) || WAL.exists(dataDir) }

// logAndVotes is what both stores are.
type logAndVotes interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// open opens the store that is kept at the path, and makes it where there is none.
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
	if err != nil { // not the nil store
		return nil, err
	}
	return store, nil
}

// lockedWAL is a WAL whose folder is locked. raft-wal itself locks only its metadata, and bbolt would wait for that lock for ever.
type lockedWAL struct {
	*wal.WAL
	path string
	meta *metadb.BoltMetaDB // closed here, too: whether the log does so depends on its version
	lock *os.File
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
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrLocked, path), lock.Close())
	}
	meta := &metadb.BoltMetaDB{}
	for _, prepare := range []func() error{
		func() error { return syncFiles(path) }, // first: the others write down what they find
		func() error { return mendWAL(path, meta) },
		func() error { return trimSealed(path, meta) },
		func() error { return keepUnlisted(path, meta) },
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
	return &lockedWAL{store, path, meta, lock}, nil
}

// StoreLogs implements raft.LogStore. It appends at most appendLimit bytes at once, or one entry.
func (w *lockedWAL) StoreLogs(logs []*raft.Log) error {
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
func (w *lockedWAL) DeleteRange(first, last uint64) error {
	if err := w.WAL.DeleteRange(first, last); err != nil {
		return err
	}
	return trimSealed(w.path, w.meta)
}

// Close closes the log, then unlocks the folder.
func (w *lockedWAL) Close() error { return errors.Join(w.WAL.Close(), w.meta.Close(), w.lock.Close()) }
