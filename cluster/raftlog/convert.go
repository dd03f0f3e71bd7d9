package raftlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"holdfast/internal/durable"
)

// ConvertLog converts a stopped node's log to the given kind, which must not be Auto. It copies the
// entries, the term and the vote, and removes the old log when the copy is on the disk. If the node
// already has a log of the given kind, nothing is copied. The error is ErrTwoLogs if that log is
// older than the other one; otherwise the other one is removed. ConvertLog may be called again
// after an interruption. converted is false, without an error, if there is no log of the other
// kind.
func ConvertLog(ctx context.Context, dataDir string, to Kind) (converted bool, err error) {
	from := to.other()
	if !from.exists(dataDir) {
		return false, removeObsolete(dataDir, from)
	}
	if err := convertLog(ctx, dataDir, from, to); err != nil {
		return false, fmt.Errorf("convert the log: %w", err)
	}
	return true, nil
}

func convertLog(ctx context.Context, dataDir string, from, to Kind) (err error) {
	lock, err := lockFolder(dataDir) // keeps a node from starting
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	src, err := from.open(from.path(dataDir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	if to.exists(dataDir) {
		err = checkCopy(src, to, to.path(dataDir))
	} else {
		err = makeCopy(ctx, src, to, to.path(dataDir))
	}
	if err != nil {
		return err
	}
	// Renamed first: a log that is removed in part could be taken for a whole one.
	if err := os.RemoveAll(from.path(dataDir) + removingSuffix); err != nil {
		return err
	}
	if err := os.Rename(from.path(dataDir), from.path(dataDir)+removingSuffix); err != nil {
		return err
	}
	if err := durable.SyncDir(dataDir); err != nil {
		return err
	}
	return removeObsolete(dataDir, from)
}

// removeObsolete removes what is left of a log that a conversion has replaced.
func removeObsolete(dataDir string, from Kind) error {
	return os.RemoveAll(from.path(dataDir) + removingSuffix)
}

// makeCopy copies src to a new log of the kind to. The new log appears at the path only when it is
// complete.
func makeCopy(ctx context.Context, src logAndVotes, to Kind, path string) error {
	copying := path + convertingSuffix
	if err := os.RemoveAll(copying); err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil { // a folder without a log
		return err
	}
	dst, err := to.open(copying)
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
	return durable.SyncDir(filepath.Dir(path))
}

// checkCopy returns ErrTwoLogs if the log that exists at the path is older than src, the log that
// it is to replace.
func checkCopy(src logAndVotes, to Kind, path string) error {
	dst, err := to.open(path)
	if err != nil {
		return err
	}
	has, hasErr := logStateOf(dst)
	want, wantErr := logStateOf(src)
	if err := errors.Join(hasErr, wantErr, dst.Close()); err != nil {
		return err
	}
	if has.currentTerm < want.currentTerm || has.last.term < want.last.term ||
		has.last.term == want.last.term && has.last.index < want.last.index {
		return fmt.Errorf("%w: %s", ErrTwoLogs, path)
	}
	return nil
}

// logState is what checkCopy compares to find the older one of two logs.
type logState struct {
	currentTerm uint64
	last        entryID
}

func logStateOf(store logAndVotes) (s logState, err error) {
	if s.currentTerm, err = store.GetUint64([]byte(keyCurrentTerm)); err != nil &&
		!errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return s, err
	}
	s.last, err = lastEntry(store)
	return s, err
}

// convertedBytes is the approximate size of a batch of copied entries.
const convertedBytes = 1 << 20

// copyEntries copies the last contiguous run of entries. A boltdb log may have a gap where a
// snapshot was installed. The snapshot covers all entries before the run.
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

// copyVotes copies what raft v1.7.3 keeps in the stable store: the current term, and the term and
// the candidate of the last vote. A node that has never voted lacks some of these.
func copyVotes(dst, src raft.StableStore) error {
	for _, key := range []string{keyCurrentTerm, "LastVoteTerm"} {
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
