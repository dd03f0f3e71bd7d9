package cluster

import (
	"context"
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

// LogStore is a way to keep the log and the votes on a disk.
type LogStore string

// The log stores. BoltDB syncs a file twice for each write; WAL, which only appends, once. WAL takes its disk space in parts of 64 MiB.
const (
	BoltDB LogStore = "boltdb"
	WAL    LogStore = "wal"
)

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

// ErrTwoLogs says that a data folder has two logs, of which the one that was to be kept is not a copy of the other.
var ErrTwoLogs = errors.New("the data folder has two logs, and the one of the setting is behind the other: move one of them away")

func (k LogStore) path(dataDir string) string {
	if k == WAL {
		return filepath.Join(dataDir, walFolder)
	}
	return filepath.Join(dataDir, boltFile)
}

func (k LogStore) other() LogStore {
	if k == WAL {
		return BoltDB
	}
	return WAL
}

// exists reports whether there is such a log. In doubt there is: a node must not take itself for new.
func (k LogStore) exists(dataDir string) bool {
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
func (k LogStore) open(path string, log *slog.Logger) (logAndVotes, error) {
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

// lockedWAL is a WAL whose folder is locked: its own lock, of a part of it, would be waited for without an end.
type lockedWAL struct {
	*wal.WAL
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
	store, err := wal.Open(path, wal.WithLogger(RaftLogger(log)), wal.WithMetaStore(meta))
	if err != nil {
		return nil, errors.Join(err, meta.Close(), lock.Close())
	}
	return &lockedWAL{store, meta, lock}, nil
}

// Close closes the log, then lets go of the folder.
func (w *lockedWAL) Close() error { return errors.Join(w.WAL.Close(), w.meta.Close(), w.lock.Close()) }

// ConvertLog makes a stopped node's log one of the given kind: the entries and the votes are copied, and what was there is removed when
// the copy is on the disk. It may be called again when it was interrupted. It reports whether there was anything to do.
func ConvertLog(ctx context.Context, dataDir string, to LogStore, log *slog.Logger) (converted bool, err error) {
	from := to.other()
	if !from.exists(dataDir) {
		return false, removeObsolete(dataDir, from)
	}
	if err := convertLog(ctx, dataDir, from, to, log); err != nil {
		return false, fmt.Errorf("convert the log: %w", err)
	}
	return true, nil
}

func convertLog(ctx context.Context, dataDir string, from, to LogStore, log *slog.Logger) (err error) {
	src, err := from.open(from.path(dataDir), log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }() // until then no node can be started with it
	if to.exists(dataDir) {
		err = checkCopy(src, to, to.path(dataDir), log)
	} else {
		err = makeCopy(ctx, src, to, to.path(dataDir), log)
	}
	if err != nil {
		return err
	}
	// In one step, because what is removed in part could be taken for a log.
	if err := os.RemoveAll(from.path(dataDir) + obsolete); err != nil {
		return err
	}
	if err := os.Rename(from.path(dataDir), from.path(dataDir)+obsolete); err != nil {
		return err
	}
	if err := syncDir(dataDir); err != nil {
		return err
	}
	return removeObsolete(dataDir, from)
}

// removeObsolete removes a log that was replaced.
func removeObsolete(dataDir string, from LogStore) error {
	return os.RemoveAll(from.path(dataDir) + obsolete)
}

// makeCopy makes a log of the other kind at the path, which appears when it is whole.
func makeCopy(ctx context.Context, src logAndVotes, to LogStore, path string, log *slog.Logger) error {
	copying := path + unfinished
	if err := os.RemoveAll(copying); err != nil {
		return err
	}
	if to == WAL { // without its metadata it is none
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	dst, err := to.open(copying, log)
	if err != nil {
		return err
	}
	if err = copyEntries(ctx, dst, src); err == nil {
		err = copyVotes(dst, src)
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		return errors.Join(err, os.RemoveAll(copying))
	}
	if err := os.Rename(copying, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// checkCopy makes sure that the log that is there already is no older than the one that it is to replace.
func checkCopy(src logAndVotes, to LogStore, path string, log *slog.Logger) error {
	dst, err := to.open(path, log)
	if err != nil {
		return err
	}
	has, hasErr := standOf(dst)
	want, wantErr := standOf(src)
	if err := errors.Join(hasErr, wantErr, dst.Close()); err != nil {
		return err
	}
	if has.voted < want.voted || has.term < want.term || has.term == want.term && has.index < want.index {
		return fmt.Errorf("%w: %s", ErrTwoLogs, path)
	}
	return nil
}

// stand is how far a log has come.
type stand struct{ voted, term, index uint64 }

func standOf(store logAndVotes) (s stand, err error) {
	if s.voted, err = store.GetUint64([]byte("CurrentTerm")); err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return s, err
	}
	if s.index, err = store.LastIndex(); err != nil || s.index == 0 {
		return s, err
	}
	var last raft.Log
	if err := store.GetLog(s.index, &last); err != nil {
		return s, err
	}
	s.term = last.Term
	return s, nil
}

// convertedBytes is about how much is copied at once.
const convertedBytes = 1 << 20

// copyEntries copies the entries from the last back to the first that lacks its predecessor: boltdb may have a gap behind a snapshot that
// the node was sent, and what is before that the snapshot has.
func copyEntries(ctx context.Context, dst, src raft.LogStore) error {
	first, err := src.FirstIndex()
	if err != nil {
		return err
	}
	last, err := src.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	begin := last
	for begin > first {
		err := src.GetLog(begin-1, &raft.Log{})
		if errors.Is(err, raft.ErrLogNotFound) {
			break
		}
		if err != nil {
			return err
		}
		begin--
	}
	var batch []*raft.Log
	size := 0
	for index := begin; index <= last && ctx.Err() == nil; index++ {
		entry := &raft.Log{}
		if err := src.GetLog(index, entry); err != nil {
			return err
		}
		batch, size = append(batch, entry), size+len(entry.Data)
		if size < convertedBytes && index < last {
			continue
		}
		if err := dst.StoreLogs(batch); err != nil {
			return err
		}
		batch, size = nil, 0
	}
	return ctx.Err()
}

// copyVotes copies what raft v1.7.3 keeps beside the log. A node that has never voted lacks some of it.
func copyVotes(dst, src raft.StableStore) error {
	for _, key := range []string{"CurrentTerm", "LastVoteTerm"} {
		value, err := src.GetUint64([]byte(key))
		if errors.Is(err, raftboltdb.ErrKeyNotFound) {
			continue
		}
		if err == nil {
			err = dst.SetUint64([]byte(key), value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	const candidate = "LastVoteCand"
	value, err := src.Get([]byte(candidate))
	if errors.Is(err, raftboltdb.ErrKeyNotFound) || err == nil && value == nil {
		return nil
	}
	if err == nil {
		err = dst.Set([]byte(candidate), value)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", candidate, err)
	}
	return nil
}
