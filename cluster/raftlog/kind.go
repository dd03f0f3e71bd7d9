package raftlog

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"holdfast/cluster/wal"
)

// Kind is a kind of log store: a value of the setting cluster.logStore.
type Kind string

// The log stores. BoltDB syncs twice for each batch of entries. WAL only appends, and syncs once
// (package wal). Both keep the term and the vote in a boltdb file. WAL allocates disk space in
// segments of 64 MiB.
const (
	// Auto is the store that a data folder already has, and WAL if it has none.
	Auto   Kind = "auto"
	BoltDB Kind = "boltdb"
	WAL    Kind = "wal"
)

// resolve returns k itself or, for Auto, the store of a data folder. path, exists, open and other
// must not be called on Auto.
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
	votesFile        = "votes.db"    // in walFolder
	convertingSuffix = ".converting" // suffix of a log that ConvertLog is writing
	removingSuffix   = ".removing"   // suffix of a log that ConvertLog has replaced
)

// ErrOtherStore says that a data folder has a log of another kind than the configured one.
var ErrOtherStore = errors.New(
	"the data folder has a log of another kind than cluster.logStore: convert it with `holdfast raft convert-log` while the node is stopped, or change cluster.logStore")

// ErrTwoLogs says that a data folder has two logs, and that the one of the kind to convert to is
// older than the other.
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

// exists reports whether a data folder has a log of this kind. It returns true if it cannot tell: a
// node that has a log must not start as a new one.
func (k Kind) exists(dataDir string) bool {
	file := k.path(dataDir)
	if k == WAL {
		hasLog, err := wal.Exists(wal.Dir(file))
		if hasLog || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
		file = filepath.Join(file, votesFile)
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

// open opens the store at a path, and creates it if it is missing. The data folder must be locked.
func (k Kind) open(path string) (logAndVotes, error) {
	if k == WAL {
		return openWAL(path)
	}
	return openBolt(path)
}

// walStore is a write-ahead log in a folder. The term and the vote are in a boltdb file beside it.
type walStore struct {
	*wal.Log
	raft.StableStore
	votes io.Closer
}

// openWAL opens a write-ahead log. The file of the votes is created first: a folder that has
// segments and no votes has lost them.
func openWAL(path string) (logAndVotes, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	folder := wal.Dir(path)
	file := filepath.Join(path, votesFile)
	hasLog, err := wal.Exists(folder)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && hasLog {
		return nil, fmt.Errorf("%w: %s is missing", wal.ErrDamaged, file)
	}
	votes, err := openBolt(file)
	if err != nil {
		return nil, err
	}
	log, err := wal.Open(wal.Config{Folder: folder, Random: rand.Reader})
	if err != nil {
		return nil, errors.Join(err, votes.Close())
	}
	return &walStore{log, votes, votes}, nil
}

// Close closes the log and the votes.
func (w *walStore) Close() error { return errors.Join(w.Log.Close(), w.votes.Close()) }
