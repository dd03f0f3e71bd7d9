package raftlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"

	"holdfast/internal/durable"
)

// ErrShortened says that a log has lost entries at its end that it had acknowledged.
var ErrShortened = errors.New("the end of the log is missing")

// markFile is the name of the end mark in a data folder.
const markFile = "log-end"

// markedLog is a log store with an end mark: a file that has the index of the last entry that StoreLogs acknowledged. A log store takes damage in
// its newest part for the end of a write that a crash interrupted, and drops what follows. It cannot tell that from entries that were acknowledged; the
// mark can. Invariant: the mark is never above the last entry on the disk. So it is written after the entries, and it is lowered, and
// synced, before the end of the log is deleted. Otherwise it is not synced: it costs no write of the disk for each entry. The kernel writes it
// within seconds, and keeps it when the process is killed. Only a power failure can leave it behind the log.
type markedLog struct {
	logAndVotes

	mu   sync.Mutex
	file *os.File
	mark uint64
}

// openMarked returns the store with the end mark of its data folder. The error is ErrShortened if the log ends below the mark. It closes the store if it
// fails.
func openMarked(store logAndVotes, dataDir string, log *slog.Logger) (*markedLog, error) {
	m, err := openMark(store, filepath.Join(dataDir, markFile), log)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return m, nil
}

func openMark(store logAndVotes, path string, log *slog.Logger) (*markedLog, error) {
	last, err := store.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	mark, err := readMark(path)
	if errors.Is(err, errMalformedMark) {
		log.Warn("the mark of the log's end is malformed: it is written anew", "file", path)
		err = fs.ErrNotExist
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := durable.WriteFile(path, formatMark(last)); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case last < mark:
		return nil, fmt.Errorf("%w: it ends at entry %d, but had entry %d on the disk (%s): empty the data folder, so that the node joins anew", ErrShortened, last, mark, path)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	m := &markedLog{logAndVotes: store, file: file}
	if err := m.setLocked(last); err != nil { // nobody else has it yet
		return nil, errors.Join(err, file.Close())
	}
	return m, nil
}

// removeMark removes the mark of a log that is gone.
func removeMark(dataDir string) error {
	if err := os.Remove(filepath.Join(dataDir, markFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	return m.setLocked(logs[len(logs)-1].Index)
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
	if m.mark < first || m.mark > last {
		return nil
	}
	begin, err := m.FirstIndex()
	if err != nil {
		return err
	}
	left := first - 1
	if first <= begin { // nothing is left
		left = 0
	}
	if err := m.setLocked(left); err != nil {
		return err
	}
	return m.file.Sync()
}

func (m *markedLog) setLocked(index uint64) error {
	if _, err := m.file.WriteAt(formatMark(index), 0); err != nil {
		return fmt.Errorf("write the mark of the log's end: %w", err)
	}
	m.mark = index
	return nil
}

// Close closes the log and its mark.
func (m *markedLog) Close() error {
	return errors.Join(m.logAndVotes.Close(), m.file.Close())
}

// The mark is a line of a fixed size: its version, the index, and a CRC-32C of both.
const (
	markFormat = "log-end 1 %020d"
	markSize   = len("log-end 1 ") + 20 + len(" 01234567\n")
)

func formatMark(index uint64) []byte {
	text := fmt.Appendf(make([]byte, 0, markSize), markFormat, index)
	return fmt.Appendf(text, " %08x\n", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

var errMalformedMark = errors.New("malformed mark of the log's end")

func readMark(path string) (index uint64, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(string(data), markFormat, &index); err != nil || string(data) != string(formatMark(index)) {
		return 0, errMalformedMark
	}
	return index, nil
}
