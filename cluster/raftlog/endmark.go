package raftlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"

	"holdfast/cluster/wal"
)

// ErrShortened says that a log has lost entries at its end that it had acknowledged.
var ErrShortened = errors.New("the end of the log is missing")

// markFile is the name of the end mark in a data folder.
const markFile = "log-end"

// entryID identifies an entry of the log. The zero value stands for an empty log.
type entryID struct{ index, term uint64 }

// markedLog is a log store with an end mark: a file that has the id of the last entry that
// StoreLogs acknowledged. A log store takes damage in its newest part for a write that a crash
// interrupted, and drops all entries from there on, even acknowledged ones. The mark shows that
// such entries are missing. Invariant: the mark is never above the last entry on the disk. So
// StoreLogs writes it after the entries, and DeleteRange lowers and syncs it before it deletes the
// end of the log. StoreLogs does not sync it, so that an entry costs no additional disk write. The
// kernel writes the mark within half a minute, also if the process is killed. Only a power failure
// can leave it behind the log.
type markedLog struct {
	logAndVotes

	mu   sync.Mutex
	file markWriter
	mark entryID
}

// markWriter is what markedLog needs of its file.
type markWriter interface {
	io.WriterAt
	io.Closer
	Sync() error
}

// openMarked returns the store with the end mark of its data folder. All entries of the store must
// be synced. The error is ErrShortened if the log ends below the mark, or has an entry of another
// term there. openMarked closes the store if it fails.
func openMarked(store logAndVotes, folder wal.Folder, log *slog.Logger) (*markedLog, error) {
	m, err := openMark(store, folder, log)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return m, nil
}

func openMark(store logAndVotes, folder wal.Folder, log *slog.Logger) (*markedLog, error) {
	last, err := lastEntry(store)
	if err != nil {
		return nil, err
	}
	old, err := readMark(folder)
	if errors.Is(err, errMalformedMark) {
		log.Warn("the mark of the log's end is malformed: it is written anew", "file", markFile)
		err = fs.ErrNotExist
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = createMark(folder, last)
	case err == nil:
		err = checkMark(store, old, last)
	}
	if err != nil {
		return nil, err
	}
	file, err := folder.Open(markFile)
	if err != nil {
		return nil, err
	}
	m := &markedLog{logAndVotes: store, file: file}
	if err := m.setLocked(last); err != nil { // m is not shared yet
		return nil, errors.Join(err, file.Close())
	}
	return m, nil
}

// createMark replaces the mark. It gets its name when it is on the disk.
func createMark(folder wal.Folder, at entryID) error {
	file, err := folder.Create(markFile + newSuffix)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(formatMark(at), 0)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := folder.Rename(markFile+newSuffix, markFile); err != nil {
		return err
	}
	return folder.Sync()
}

// checkMark returns ErrShortened if the log ends before old, the entry of the mark, or has another
// term there. Compaction may have removed that entry. last is the last entry of the log.
func checkMark(store raft.LogStore, old, last entryID) error {
	const whatToDo = "If the members that are up are a majority without this one, empty the data folder, and this node joins anew; otherwise see " + markFile +
		" in the documentation"
	if last.index < old.index {
		return fmt.Errorf("%w: it ends at entry %d, but entry %d was on the disk. %s", ErrShortened,
			last.index, old.index, whatToDo)
	}
	has, err := entryAt(store, old.index)
	if errors.Is(err, raft.ErrLogNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if has.term != old.term {
		return fmt.Errorf("%w: entry %d has the term %d, but that of term %d was on the disk. %s",
			ErrShortened, old.index, has.term, old.term, whatToDo)
	}
	return nil
}

// lastEntry returns the id of the last entry.
func lastEntry(store raft.LogStore) (entryID, error) {
	last, err := store.LastIndex()
	if err != nil {
		return entryID{}, fmt.Errorf("read the log: %w", err)
	}
	return entryAt(store, last)
}

// entryAt returns the id of an entry, the zero value for index 0. The error is raft.ErrLogNotFound
// if the log does not have the entry.
func entryAt(store raft.LogStore, index uint64) (entryID, error) {
	if index == 0 {
		return entryID{}, nil
	}
	var entry raft.Log
	if err := store.GetLog(index, &entry); err != nil {
		return entryID{}, fmt.Errorf("read the log: %w", err)
	}
	return entryID{index, entry.Term}, nil
}

// removeMark removes the mark of a log that is gone.
func removeMark(dataDir string) error {
	if err := os.Remove(filepath.Join(dataDir, markFile)); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// StoreLogs implements raft.LogStore.
func (m *markedLog) StoreLogs(logs []*raft.Log) error {
	if err := m.logAndVotes.StoreLogs(logs); err != nil || len(logs) == 0 {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last := logs[len(logs)-1]
	return m.setLocked(entryID{last.Index, last.Term})
}

// StoreLog implements raft.LogStore.
func (m *markedLog) StoreLog(log *raft.Log) error { return m.StoreLogs([]*raft.Log{log}) }

// DeleteRange implements raft.LogStore.
func (m *markedLog) DeleteRange(first, last uint64) error {
	if err := m.lower(first, last); err != nil {
		return err
	}
	return m.logAndVotes.DeleteRange(first, last)
}

// lower moves the mark below a range that is about to be deleted, if the mark is in it.
func (m *markedLog) lower(first, last uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mark.index < first || m.mark.index > last {
		return nil
	}
	begin, err := m.FirstIndex()
	if err != nil {
		return err
	}
	var left entryID
	if first > begin {
		left, err = entryAt(m.logAndVotes, first-1)
		if err != nil && !errors.Is(err, raft.ErrLogNotFound) { // a boltdb log may have a gap
			return err
		}
	}
	if err := m.setLocked(left); err != nil {
		return err
	}
	return m.file.Sync()
}

func (m *markedLog) setLocked(to entryID) error {
	if _, err := m.file.WriteAt(formatMark(to), 0); err != nil {
		return fmt.Errorf("write the mark of the log's end: %w", err)
	}
	m.mark = to
	return nil
}

// Close closes the log and its mark.
func (m *markedLog) Close() error {
	return errors.Join(m.logAndVotes.Close(), m.file.Close())
}

// The mark is a line of a fixed size: the version of the format, the index, the term, and a CRC-32C
// of all three.
const (
	markFormat = "log-end 1 %020d %020d"
	markSize   = len("log-end 1 ") + 20 + len(" ") + 20 + len(" 01234567\n")
)

func formatMark(m entryID) []byte {
	text := fmt.Appendf(make([]byte, 0, markSize), markFormat, m.index, m.term)
	return fmt.Appendf(text, " %08x\n", crc32.Checksum(text, castagnoli()))
}

var errMalformedMark = errors.New("malformed mark of the log's end")

func readMark(folder wal.Folder) (m entryID, err error) {
	file, err := folder.Open(markFile)
	if err != nil {
		return entryID{}, err
	}
	data, err := io.ReadAll(io.NewSectionReader(file, 0, int64(2*markSize)))
	if err = errors.Join(err, file.Close()); err != nil {
		return entryID{}, err
	}
	if _, err := fmt.Sscanf(string(data), markFormat, &m.index, &m.term); err != nil ||
		string(data) != string(formatMark(m)) {
		return entryID{}, errMalformedMark
	}
	return m, nil
}
