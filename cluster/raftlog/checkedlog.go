package raftlog

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"holdfast/cluster/wal"
	"holdfast/fsm"
)

// CheckedLog is the raft.LogStore that raft uses, over a BoltDB or WAL store. It gives each entry a
// checksum. It verifies the checksum before it stores the entry and after it reads it from the
// store, because the stores do not verify the entries that they read. A corrupt entry ends the
// process, so that it is not replicated. A write or deletion that fails or hangs ends the process,
// because raft goes on after a failed StoreLogs. CheckedLog caches the newest entries, up to a
// number of bytes. It records the indexes of the commands that were stored since the process
// started. A read waits for the last committed command (LastCommand), because the state machine
// does not see no-ops and configurations. All methods but SetFollowerSnapshot are safe for
// concurrent use.
type CheckedLog struct {
	raft.LogStore
	guard Guard

	mu         sync.Mutex
	cache      []*raft.Log // consecutive, ascending
	cacheBytes int
	cacheLimit int
	// ascending indexes of the commands stored since the process started; DeleteRange and
	// LastCommand remove some
	commands []uint64

	followerSnapshot func() (index, term uint64)       // see SetFollowerSnapshot
	replica          func() (applied, snapshot uint64) // see SetReplica
}

// placeholderType is the type of a placeholder: the entry that GetLog returns for a missing entry,
// or in place of an entry whose term contradicts the snapshot. A placeholder has an index, a term
// (0 if unknown) and no data. It is never stored.
const placeholderType raft.LogType = 255

// ErrPlaceholder says that a leader sent a placeholder instead of an entry.
var ErrPlaceholder = errors.New("refused to store a placeholder log entry from the leader")

// NewCheckedLog returns a log over a store that caches at most cacheLimit bytes of its newest
// entries.
func NewCheckedLog(store raft.LogStore, guard Guard, cacheLimit int) *CheckedLog {
	return &CheckedLog{
		LogStore: store, guard: guard, cacheLimit: cacheLimit,
		followerSnapshot: func() (index, term uint64) { return 0, 0 },
		replica:          func() (applied, snapshot uint64) { return 0, 0 },
	}
}

// IsMonotonic implements raft.MonotonicLogStore. Raft empties such a log when it installs a
// snapshot. Otherwise a deposed leader's entries could stay below the snapshot, and this node would
// replicate them if it became the leader.
func (l *CheckedLog) IsMonotonic() bool { return true }

// StoreLog implements raft.LogStore.
func (l *CheckedLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (l *CheckedLog) StoreLogs(logs []*raft.Log) error {
	for _, log := range logs {
		if log.Type == placeholderType {
			return fmt.Errorf("%w: index %d", ErrPlaceholder, log.Index)
		}
		addChecksum(log) // a leader's own entries have none
		if err := verifyLog(log); err != nil {
			l.guard.Exit(err)
			return err
		}
	}
	if err := l.clearBeforeGap(logs); err != nil {
		return err
	}
	if err := l.guard.do("log", func() error { return l.LogStore.StoreLogs(logs) }); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, log := range logs {
		l.remember(log)
	}
	return nil
}

// clearBeforeGap deletes the whole log if the new entries would leave a gap after its last entry.
// Raft itself empties the log when it installs a snapshot. If the process crashes after the
// snapshot is stored and before the log is empty, old entries stay.
func (l *CheckedLog) clearBeforeGap(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	last, err := l.LastIndex()
	if err != nil || last == 0 || logs[0].Index <= last+1 {
		return err
	}
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	return l.DeleteRange(first, last)
}

func (l *CheckedLog) remember(log *raft.Log) {
	if n := len(l.cache); n > 0 && l.cache[n-1].Index+1 != log.Index {
		l.cache, l.cacheBytes = nil, 0
	}
	l.cache = append(l.cache, log)
	l.cacheBytes += cachedSize(log)
	for l.cacheBytes > l.cacheLimit && len(l.cache) > 0 {
		l.cacheBytes -= cachedSize(l.cache[0])
		l.cache[0] = nil
		l.cache = l.cache[1:] // append moves the rest to a new array when this one is used up
	}
	if log.Type == raft.LogCommand {
		l.commands = append(l.commands, log.Index)
	}
}

// cachedSize returns about how many bytes a cached entry takes up.
func cachedSize(log *raft.Log) int {
	const overhead = 160
	return overhead + len(log.Data)
}

// GetLog implements raft.LogStore. While this node does not lead and has a snapshot, it never
// returns ErrLogNotFound. It returns a placeholder instead (placeholderType). Raft knows the last
// entry itself. It asks this log for any other entry that precedes an AppendEntries, and for each
// received entry up to its last index:
//
//   - At the snapshot's index GetLog returns the snapshot's term if the log has no entry or another
//     term there. Otherwise a deposed leader with conflicting entries there would reject every
//     AppendEntries of the new leader.
//   - At any other missing index it returns term 0, which no entry of a leader has. So raft
//     replaces the entry. After an installed snapshot has emptied the log, raft keeps its old last
//     index. On an error it would reject all entries up to that.
//
// A placeholder is never applied: committed entries after the snapshot are real. A leader gets no
// placeholder, because it could replicate one.
func (l *CheckedLog) GetLog(index uint64, log *raft.Log) error {
	err := l.lookUp(index, log)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	at, term := l.followerSnapshot()
	switch {
	case at == 0:
		return err
	case index == at && (err != nil || log.Term != term):
		*log = raft.Log{Index: index, Term: term, Type: placeholderType}
	case err != nil:
		*log = raft.Log{Index: index, Type: placeholderType}
	}
	return nil
}

// lookUp returns the entry that the cache or the store has.
func (l *CheckedLog) lookUp(index uint64, log *raft.Log) error {
	l.mu.Lock()
	if n := len(l.cache); n > 0 && index >= l.cache[0].Index && index <= l.cache[n-1].Index {
		*log = *l.cache[index-l.cache[0].Index]
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	err := l.LogStore.GetLog(index, log)
	switch {
	case errors.Is(err, wal.ErrDamaged):
		err = fmt.Errorf("%w: %w", fsm.ErrDamaged, err)
	case err != nil:
		return err
	default:
		err = verifyLog(log)
	}
	if err == nil && log.Index != index {
		err = fmt.Errorf("%w: the raft log has entry %d at the place of %d", fsm.ErrDamaged,
			log.Index, index)
	}
	if err != nil {
		l.guard.Exit(err)
		// Exit returned: this is a test, or a recovery, which reports the error when it ends.
		// Return a no-op, because raft panics on an error.
		*log = raft.Log{Index: index, Term: log.Term, Type: raft.LogNoop}
	}
	return nil
}

// SetFollowerSnapshot gives the log a function that returns the index and the term of the newest
// applied snapshot, or 0, 0 before raft has started, on the leader, and without a snapshot. It is
// called before raft starts.
func (l *CheckedLog) SetFollowerSnapshot(newest func() (index, term uint64)) {
	l.followerSnapshot = newest
}

// SetReplica gives the log a function that returns the index of the last entry that the state has,
// and of the newest snapshot. It is called before raft starts.
func (l *CheckedLog) SetReplica(replica func() (applied, snapshot uint64)) { l.replica = replica }

// ErrDiverged says that a leader replaces entries that this member has applied. An applied entry is
// committed, so a majority had it, and the leader does not.
var ErrDiverged = errors.New("the leader replaces entries that this member has applied: a member's data was put back to an older copy, " +
	"or two clusters were mixed")

// checkDeletion returns ErrDiverged if a deletion at the end of the log has an entry that is
// applied and not in a snapshot. Raft deletes the end of the log where the leader has other
// entries. When it installs a snapshot it deletes the whole log, of which the state then has only
// what is in the snapshot.
func (l *CheckedLog) checkDeletion(first, last, end uint64) error {
	applied, snapshot := l.replica()
	if from := max(first, snapshot+1); last >= end && from <= min(applied, end) {
		return fmt.Errorf("%w: entries %d to %d; %d and those before it are applied", ErrDiverged,
			from, end, min(applied, end))
	}
	return nil
}

// ErrCompacted says that raft took entries that compaction had just removed for different ones.
var ErrCompacted = errors.New(
	"refused to delete the end of the log: entries before it were compacted meanwhile")

// checkCompacted returns ErrCompacted if a deletion at the end of the log begins before the log, at
// an entry that a snapshot has. A leader may send entries again that this member has applied. If a
// snapshot ends while raft compares them, compaction removes some, GetLog returns placeholders for
// these, and raft sees a conflict. It then answers that it did not succeed, and the leader sends
// the entries again.
func (l *CheckedLog) checkCompacted(first, last, end uint64) error {
	begin, err := l.FirstIndex()
	if err != nil {
		return err
	}
	if _, snapshot := l.replica(); first > 0 && first < begin && last >= end && first <= snapshot {
		return fmt.Errorf("%w: from %d on, the log begins at %d", ErrCompacted, first, begin)
	}
	return nil
}

// DeleteRange implements raft.LogStore. The log need not have all of the range.
func (l *CheckedLog) DeleteRange(first, last uint64) error {
	has, err := l.LastIndex()
	if err != nil || has == 0 || has < first {
		return err
	}
	if err := l.checkCompacted(first, last, has); err != nil {
		return err
	}
	if err := l.checkDeletion(first, last, has); err != nil {
		l.guard.Exit(err)
		return err
	}
	l.mu.Lock()
	l.cache, l.cacheBytes = nil, 0
	// A range at the end is a conflict with a new leader; one at the front is compaction.
	l.commands = slices.DeleteFunc(l.commands,
		func(index uint64) bool { return first <= index && index <= last })
	l.mu.Unlock()
	return l.guard.do("log", func() error { return l.LogStore.DeleteRange(first, last) })
}

// LastCommand returns the index of the last command at or below index, among the commands stored
// since the process started. It returns 0 if there is none. It drops the recorded indexes below
// applied, because no read waits for them.
func (l *CheckedLog) LastCommand(index, applied uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep, _ := slices.BinarySearch(l.commands, applied)
	l.commands = slices.Delete(l.commands, 0, keep)
	if next, _ := slices.BinarySearch(l.commands, index+1); next > 0 {
		return l.commands[next-1]
	}
	return 0
}
