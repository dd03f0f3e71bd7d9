package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// A log that has lost acknowledged entries at its end is refused: the end mark (the file log-end) names the last acknowledged entry. A log that has lost
// nothing is opened, whatever a crash left of the mark.
func TestShortenedLogIsNotOpened(t *testing.T) {
	// behind calls the store itself, past the mark.
	behind := func(t *testing.T, dir string, kind Kind, call func(logAndVotes) error) {
		store, err := kind.open(kind.path(dir), quiet())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(call(store), store.Close()); err != nil {
			t.Fatal(err)
		}
	}
	writeMark := func(t *testing.T, dir, text string) {
		if err := os.WriteFile(filepath.Join(dir, markFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		happen func(*testing.T, string, Kind)
		last   uint64 // index of the last entry in the opened log; 0 if the log is refused
	}{
		{"nothing", func(*testing.T, string, Kind) {}, 10},
		{"the last entry is lost", func(t *testing.T, dir string, kind Kind) {
			behind(t, dir, kind, func(store logAndVotes) error { return store.DeleteRange(10, 10) })
		}, 0},
		{"all entries are lost", func(t *testing.T, dir string, kind Kind) {
			behind(t, dir, kind, func(store logAndVotes) error { return store.DeleteRange(1, 10) })
		}, 0},
		{"the power fails, and the mark is an old one", func(t *testing.T, dir string, _ Kind) { writeMark(t, dir, string(formatMark(entryID{4, 4}))) }, 10},
		{"a crash before the mark is written", func(t *testing.T, dir string, kind Kind) {
			behind(t, dir, kind, func(store logAndVotes) error { return store.StoreLogs(entries(11, 12)) })
		}, 12},
		{"an entry is replaced by an older one", func(t *testing.T, dir string, _ Kind) { writeMark(t, dir, string(formatMark(entryID{9, 10}))) }, 0},
		{"the power fails, and compaction has passed the old mark", func(t *testing.T, dir string, kind Kind) {
			behind(t, dir, kind, func(store logAndVotes) error { return store.DeleteRange(1, 5) })
			writeMark(t, dir, string(formatMark(entryID{4, 4})))
		}, 10},
		{"the mark is empty", func(t *testing.T, dir string, _ Kind) { writeMark(t, dir, "") }, 10},
		{"the mark is damaged", func(t *testing.T, dir string, _ Kind) {
			writeMark(t, dir, "log-end 1 00000000000000000999 00000000000000000999 00000000\n")
		}, 10},
		{"the mark is removed", func(t *testing.T, dir string, _ Kind) { _ = os.Remove(filepath.Join(dir, markFile)) }, 10},
	} {
		for _, kind := range []Kind{BoltDB, WAL} {
			t.Run(test.name+", "+string(kind), func(t *testing.T) {
				dir := t.TempDir()
				stores := openStores(t, dir, kind)
				if err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Close()); err != nil {
					t.Fatal(err)
				}
				test.happen(t, dir, kind)
				stores, err := OpenStores(dir, kind, quiet())
				if test.last == 0 {
					if !errors.Is(err, ErrShortened) {
						t.Errorf("%v, want ErrShortened", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if last, err := stores.Log.LastIndex(); err != nil || last != test.last {
					t.Errorf("the log ends at %d, %v; want %d", last, err, test.last)
				}
				// The mark holds again for what is stored from here on.
				if err := errors.Join(stores.Log.StoreLogs(entries(test.last+1, test.last+3)), stores.Close()); err != nil {
					t.Fatal(err)
				}
				if got, err := readMark(filepath.Join(dir, markFile)); err != nil || got != (entryID{test.last + 3, test.last + 3}) {
					t.Errorf("mark %v, %v; want %d", got, err, test.last+3)
				}
			})
		}
	}
}

// Segments that damaged metadata does not list may have acknowledged entries. They are removed only at a start at which the end mark names an entry that
// the log has.
func TestUnlistedSegmentsStayUnlessTheMarkConfirmsTheLog(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, WAL)
	if err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Close()); err != nil {
		t.Fatal(err)
	}
	kept := func(mark string) bool { // reports whether an unlisted segment is kept at two starts, after the mark was replaced (if mark is not empty)
		t.Helper()
		stray := filepath.Join(WAL.path(dir), "00000000000000000099-0000000000000063"+segmentSuffix)
		if err := os.WriteFile(stray, []byte("entries"), 0o600); err != nil {
			t.Fatal(err)
		}
		if mark != "" {
			if err := os.WriteFile(filepath.Join(dir, markFile), []byte(mark), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := openStores(t, dir, WAL).Close(); err != nil {
				t.Fatal(err)
			}
		}
		return os.Remove(stray+unlistedSuffix) == nil
	}
	if !kept("damaged") || !kept(string(formatMark(entryID{}))) {
		t.Error("without a mark of an entry the segment is removed")
	}
	if kept("") {
		t.Error("with a mark the segment is kept")
	}
}

// The mark is written after the entries, and lowered before the end of the log is deleted. So whenever the process crashes, the mark is not above the last
// entry on the disk.
func TestMarkIsNeverAboveTheLog(t *testing.T) {
	for _, test := range []struct {
		name string
		call func(raft.LogStore) error
		want []string
	}{
		{"entries", func(log raft.LogStore) error { return log.StoreLogs(entries(11, 13)) }, []string{"store to 13", "mark 13"}},
		{"a conflict with a new leader", func(log raft.LogStore) error { return log.DeleteRange(8, 10) }, []string{"mark 7", "sync the mark", "delete 8 to 10"}},
		{"the whole log", func(log raft.LogStore) error { return log.DeleteRange(1, 10) }, []string{"mark 0", "sync the mark", "delete 1 to 10"}},
		{"the whole log and more", func(log raft.LogStore) error { return log.DeleteRange(1, 99) }, []string{"mark 0", "sync the mark", "delete 1 to 99"}},
		{"compaction", func(log raft.LogStore) error { return log.DeleteRange(1, 6) }, []string{"delete 1 to 6"}},
		{"nothing, behind the end", func(log raft.LogStore) error { return log.DeleteRange(20, 30) }, []string{"delete 20 to 30"}},
	} {
		for _, kind := range []Kind{BoltDB, WAL} {
			t.Run(test.name+", "+string(kind), func(t *testing.T) {
				dir := t.TempDir()
				stores := openStores(t, dir, kind)
				if err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Close()); err != nil {
					t.Fatal(err)
				}
				stores = openStores(t, dir, kind) // opened again, so that no StoreLogs of this store has set the mark
				store, calls := stores.Log.(*markedLog), &calls{}
				store.logAndVotes, store.file = calledLog{store.logAndVotes, calls}, calledMark{store.file, calls}
				if err := errors.Join(test.call(store), stores.Close()); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(calls.made, test.want) {
					t.Errorf("%q, want %q", calls.made, test.want)
				}
				if err := openStores(t, dir, kind).Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// An error of the log leaves the mark where it is.
func TestFailedWriteMovesNoMark(t *testing.T) {
	stores := openStores(t, t.TempDir(), WAL)
	store, calls := stores.Log.(*markedLog), &calls{}
	store.logAndVotes, store.file = calledLog{store.logAndVotes, calls}, calledMark{store.file, calls}
	if err := store.StoreLogs(entries(5, 3)); err != nil || len(calls.made) != 1 { // no entries: from 5 to 3
		t.Errorf("%v, %q", err, calls.made)
	}
	if err := errors.Join(store.StoreLogs(entries(1, 1)), stores.Close()); err != nil {
		t.Fatal(err)
	}
	before := len(calls.made)
	if err := store.StoreLogs(entries(2, 2)); err == nil || len(calls.made) != before+1 {
		t.Errorf("%v, %q: a closed log stored an entry", err, calls.made)
	}
}

// calls lists calls of a log and its mark in their order.
type calls struct{ made []string }

func (c *calls) add(format string, arguments ...any) {
	c.made = append(c.made, fmt.Sprintf(format, arguments...))
}

type calledLog struct {
	logAndVotes
	calls *calls
}

func (l calledLog) StoreLogs(logs []*raft.Log) error {
	last := uint64(0)
	if len(logs) > 0 {
		last = logs[len(logs)-1].Index
	}
	l.calls.add("store to %d", last)
	return l.logAndVotes.StoreLogs(logs)
}

func (l calledLog) DeleteRange(first, last uint64) error {
	l.calls.add("delete %d to %d", first, last)
	return l.logAndVotes.DeleteRange(first, last)
}

type calledMark struct {
	markWriter
	calls *calls
}

func (m calledMark) WriteAt(data []byte, offset int64) (int, error) {
	var index uint64
	_, err := fmt.Sscanf(string(data), "log-end 1 %d", &index)
	m.calls.add("mark %d", index)
	n, writeErr := m.markWriter.WriteAt(data, offset)
	return n, errors.Join(err, writeErr)
}

func (m calledMark) Sync() error {
	m.calls.add("sync the mark")
	return m.markWriter.Sync()
}

// A conflict with a new leader cuts off the end of the log, and seals a segment. However often that happens, the log takes at most two segments of disk
// space: the sealed ones are truncated to their entries.
func TestTruncatedWALTakesLittleSpace(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, WAL)
	const cuts = 10
	for n := range uint64(cuts) {
		if err := errors.Join(stores.Log.StoreLogs(entries(n*2+1, n*2+4)), stores.Log.DeleteRange(n*2+3, n*2+4)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		size := int64(0)
		for _, file := range readTree(t, dir) {
			size += file.size
		}
		if size > 2*segmentSize {
			t.Errorf("%d entries take %d bytes", 2*cuts, size)
		}
		hasEntries(t, stores.Log, 2*cuts)
		if err := stores.Close(); err != nil {
			t.Fatal(err)
		}
		stores = openStores(t, dir, WAL)
	}
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
}

// sealSegment makes a WAL whose sealed segment has ten entries, of which eight are in the log. It returns the folder and the file of the segment.
func sealSegment(t *testing.T) (dir, path string) {
	dir = t.TempDir()
	stores := openStores(t, dir, WAL)
	if err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Log.DeleteRange(9, 10), stores.Close()); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, "wal", "00000000000000000001-0000000000000000.wal")
}

// sealedIndexSize is the size of the index that sealSegment makes, in bytes.
const sealedIndexSize = 10 * 4

// If the recorded size of a sealed segment's index has a flipped bit, nothing that the segment needs is truncated.
func TestDamagedIndexSizeCutsNothingOff(t *testing.T) {
	dir, path := sealSegment(t)
	data, err := os.ReadFile(path)
	header := []byte{segment.FrameIndex, 0, 0, 0, sealedIndexSize, 0, 0, 0}
	at := bytes.LastIndex(data, header)
	if err != nil || at < 0 || len(data) != at+len(header)+sealedIndexSize+frameHeaderSize {
		t.Fatalf("%v: %d bytes, the index is at %d", err, len(data), at)
	}
	flip(t, path, int64(at+4), sealedIndexSize^1<<5)
	if err := os.Truncate(path, segmentSize); err != nil { // it is not trimmed yet
		t.Fatal(err)
	}
	stores := openStores(t, dir, WAL)
	hasEntries(t, stores.Log, 8)
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
}

// Damaged metadata that puts the index of a sealed segment elsewhere cuts nothing off.
func TestDamagedIndexPlaceCutsNothingOff(t *testing.T) {
	_, path := sealSegment(t)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for start := uint64(frameHeaderSize); start < uint64(len(before))+frameHeaderSize; start += 4 {
		if start == uint64(len(before))-frameHeaderSize-sealedIndexSize { // where it is
			continue
		}
		info := types.SegmentInfo{BaseIndex: 1, MinIndex: 1, MaxIndex: 8, IndexStart: start}
		if err := trimSegment(path, info); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("%d of %d bytes are left: %v", len(after), len(before), err)
	}
}

// A data folder may have any name.
func TestDataFolderMayHaveAnyName(t *testing.T) {
	for _, name := range []string{"a[b", "a[b]", "a*?\\"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			for range 2 {
				if err := openStores(t, dir, WAL).Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A WAL of large entries takes little memory, although raft-wal keeps a buffer of up to twice the largest append for each segment.
func TestWALWithLargeEntriesTakesLittleMemory(t *testing.T) {
	stores := openStores(t, t.TempDir(), WAL)
	const batches, batch, size = 8, 8, 4 << 20
	data := make([]byte, size)
	for n := range uint64(batches) {
		logs := entries(n*batch+1, n*batch+batch)
		for _, log := range logs {
			log.Data = data
		}
		if err := stores.Log.StoreLogs(logs); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	if memory.HeapAlloc > 100<<20 {
		t.Errorf("a log of %d MiB takes %d MiB of memory", batches*batch*size>>20, memory.HeapAlloc>>20)
	}
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
}

// A flipped bit in the newest meta page makes bbolt go back by one transaction, here to the state before entries were replaced. A log with the old entries
// is refused.
func TestReplacedEntriesDoNotComeBack(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, WAL)
	replaced := []*raft.Log{{Index: 8, Term: 99, Type: raft.LogNoop}, {Index: 9, Term: 99, Type: raft.LogNoop}}
	err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Stable.SetUint64([]byte("CurrentTerm"), 99),
		stores.Log.DeleteRange(8, 10), stores.Log.StoreLogs(replaced), stores.Close())
	if err != nil {
		t.Fatal(err)
	}
	files := readTree(t, dir)
	name := filepath.Join("wal", "wal-meta.db")
	noticed := 0
	for page := range 2 { // bbolt's two meta pages: one of them is the newest
		fresh := t.TempDir()
		writeTree(t, fresh, files)
		place := page*os.Getpagesize() + 64 // in the transaction's number or the checksum
		flip(t, filepath.Join(fresh, name), int64(place), files[name].data[place]^1)
		stores, err := OpenStores(fresh, WAL, quiet())
		if err != nil {
			noticed++
			kept, err := os.ReadDir(filepath.Join(fresh, "wal"))
			segments := slices.DeleteFunc(kept, func(entry os.DirEntry) bool { return !strings.Contains(entry.Name(), segmentSuffix) })
			if err != nil || len(segments) != 2 {
				t.Errorf("%v, %v: the segments are not kept for a repair", segments, err)
			}
			continue
		}
		var got raft.Log
		if err := errors.Join(stores.Log.GetLog(9, &got), stores.Close()); err != nil || got.Term != 99 {
			t.Errorf("a flipped bit in page %d brings back entry 9 of term %d: %v", page, got.Term, err)
		}
	}
	if noticed == 0 {
		t.Error("no flipped bit was noticed: the test damages no page in use")
	}
}

// A node whose log was removed is a new member: the mark of the old log does not hold for the new one.
func TestMarkOfARemovedLogIsRemoved(t *testing.T) {
	for _, kind := range []Kind{BoltDB, WAL} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			stores := openStores(t, dir, kind)
			if err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Close(), os.RemoveAll(kind.path(dir))); err != nil {
				t.Fatal(err)
			}
			if err := openStores(t, dir, kind).Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The mark is a format on the disk: an older file must be read.
func TestEarlierEndMarkIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), markFile)
	const text = "log-end 1 00000000000000001234 00000000000000000007 110c1e6b\n"
	want := entryID{1234, 7}
	if got := string(formatMark(want)); got != text {
		t.Errorf("%q, want %q", got, text)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readMark(path); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
}
