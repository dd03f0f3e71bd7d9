package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"holdfast/cluster/wal"
)

// A log that has lost acknowledged entries at its end is refused: the end mark (the file log-end)
// names the last acknowledged entry. A log that has lost nothing is opened, whatever a crash left
// of the mark.
func TestShortenedLogIsNotOpened(t *testing.T) {
	// behind calls the store itself, past the mark.
	behind := func(t *testing.T, dir string, kind Kind, call func(logAndVotes) error) {
		store, err := kind.open(kind.path(dir))
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
		{
			"the power fails, and the mark is an old one",
			func(t *testing.T, dir string,
				_ Kind,
			) {
				writeMark(t, dir, string(formatMark(entryID{4, 4})))
			}, 10,
		},
		{"a crash before the mark is written", func(t *testing.T, dir string, kind Kind) {
			behind(t, dir, kind,
				func(store logAndVotes) error { return store.StoreLogs(entries(11, 12)) })
		}, 12},
		{
			"an entry is replaced by an older one",
			func(t *testing.T, dir string,
				_ Kind,
			) {
				writeMark(t, dir, string(formatMark(entryID{9, 10})))
			}, 0,
		},
		{
			"the power fails, and compaction has passed the old mark",
			func(t *testing.T, dir string, kind Kind) {
				behind(t, dir, kind,
					func(store logAndVotes) error { return store.DeleteRange(1, 5) })
				writeMark(t, dir, string(formatMark(entryID{4, 4})))
			}, 10,
		},
		{"the mark is empty", func(t *testing.T, dir string, _ Kind) { writeMark(t, dir, "") }, 10},
		{"the mark is damaged", func(t *testing.T, dir string, _ Kind) {
			writeMark(t, dir, "log-end 1 00000000000000000999 00000000000000000999 00000000\n")
		}, 10},
		{
			"the mark is removed",
			func(t *testing.T, dir string, _ Kind) { _ = os.Remove(filepath.Join(dir, markFile)) },
			10,
		},
	} {
		for _, kind := range []Kind{BoltDB, WAL} {
			t.Run(test.name+", "+string(kind), func(t *testing.T) {
				dir := t.TempDir()
				stores := openStores(t, dir, kind)
				if err := errors.Join(stores.Log.StoreLogs(entries(1, 10)),
					stores.Close()); err != nil {
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
				if err := errors.Join(stores.Log.StoreLogs(entries(test.last+1, test.last+3)),
					stores.Close()); err != nil {
					t.Fatal(err)
				}
				if got, err := readMark(wal.Dir(dir)); err != nil ||
					got != (entryID{test.last + 3, test.last + 3}) {
					t.Errorf("mark %v, %v; want %d", got, err, test.last+3)
				}
			})
		}
	}
}

// The mark is written after the entries, and lowered before the end of the log is deleted. So
// whenever the process crashes, the mark is not above the last entry on the disk.
func TestMarkIsNeverAboveTheLog(t *testing.T) {
	for _, test := range []struct {
		name string
		call func(raft.LogStore) error
		want []string
	}{
		{
			"entries", func(log raft.LogStore) error { return log.StoreLogs(entries(11, 13)) },
			[]string{"store to 13", "mark 13"},
		},
		{
			"a conflict with a new leader",
			func(log raft.LogStore) error { return log.DeleteRange(8, 10) },
			[]string{"mark 7", "sync the mark", "delete 8 to 10"},
		},
		{
			"the whole log", func(log raft.LogStore) error { return log.DeleteRange(1, 10) },
			[]string{"mark 0", "sync the mark", "delete 1 to 10"},
		},
		{
			"the whole log and more",
			func(log raft.LogStore) error { return log.DeleteRange(1, 99) },
			[]string{"mark 0", "sync the mark", "delete 1 to 99"},
		},
		{
			"compaction", func(log raft.LogStore) error { return log.DeleteRange(1, 6) },
			[]string{"delete 1 to 6"},
		},
		{
			"nothing, behind the end",
			func(log raft.LogStore) error { return log.DeleteRange(20, 30) },
			[]string{"delete 20 to 30"},
		},
	} {
		for _, kind := range []Kind{BoltDB, WAL} {
			t.Run(test.name+", "+string(kind), func(t *testing.T) {
				dir := t.TempDir()
				stores := openStores(t, dir, kind)
				if err := errors.Join(stores.Log.StoreLogs(entries(1, 10)),
					stores.Close()); err != nil {
					t.Fatal(err)
				}
				// opened again, so that no StoreLogs of this store has set the mark
				stores = openStores(t, dir, kind)
				store, calls := stores.Log.(*markedLog), &calls{}
				store.logAndVotes, store.file = calledLog{store.logAndVotes, calls},
					calledMark{store.file, calls}
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
	store.logAndVotes, store.file = calledLog{store.logAndVotes, calls},
		calledMark{store.file, calls}
	if err := store.StoreLogs(entries(5, 3)); err != nil || len(calls.made) != 1 {
		// no entries: from 5 to 3
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

// A conflict with a new leader cuts off the end of the log. However often that happens, and the
// node is started again, the log takes one segment of disk space.
func TestTruncatedWALTakesLittleSpace(t *testing.T) {
	dir := t.TempDir()
	const cuts = 10
	for n := range uint64(cuts) {
		stores := openStores(t, dir, WAL)
		hasEntries(t, stores.Log, 2*n)
		err := errors.Join(stores.Log.StoreLogs(entries(n*2+1, n*2+4)),
			stores.Log.DeleteRange(n*2+3, n*2+4), stores.Close())
		if err != nil {
			t.Fatal(err)
		}
		size := int64(0)
		for _, file := range readTree(t, dir) {
			size += file.size
		}
		const segment, votes = 64 << 20, 64 << 10
		if size > segment+votes {
			t.Errorf("%d entries take %d bytes", 2*n+2, size)
		}
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

// A WAL of large entries takes little memory: it has no buffer as large as an entry.
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
	if memory.HeapAlloc > 20<<20 {
		t.Errorf("a log of %d MiB takes %d MiB of memory", batches*batch*size>>20,
			memory.HeapAlloc>>20)
	}
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
}

// A flipped bit in the frame that deletes entries would bring back what was replaced. Such a log is
// refused, and its files stay for a repair.
func TestReplacedEntriesDoNotComeBack(t *testing.T) {
	dir := t.TempDir()
	stores := openStores(t, dir, WAL)
	replaced := []*raft.Log{
		{Index: 8, Term: 99, Type: raft.LogNoop},
		{Index: 9, Term: 99, Type: raft.LogNoop},
	}
	name := filepath.Join("wal", "000000000001.wal")
	err := stores.Log.StoreLogs(entries(1, 10))
	place := len(readTree(t, dir)[name].data) + 24 // in the payload of the next frame
	err = errors.Join(err, stores.Log.DeleteRange(8, 10), stores.Log.StoreLogs(replaced),
		stores.Close())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, file, int64(place), before[place]^1)
	for range 2 {
		if _, err := OpenStores(dir, WAL, quiet()); !errors.Is(err, ErrShortened) {
			t.Fatal(err)
		}
	}
	flip(t, file, int64(place), before[place])
	stores = openStores(t, dir, WAL)
	var got raft.Log
	if err := errors.Join(stores.Log.GetLog(9, &got), stores.Close()); err != nil ||
		got.Term != 99 {
		t.Errorf("after the repair entry 9 has the term %d: %v", got.Term, err)
	}
}

// A node whose log was removed is a new member: the mark of the old log does not hold for the new
// one.
func TestMarkOfARemovedLogIsRemoved(t *testing.T) {
	for _, kind := range []Kind{BoltDB, WAL} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			stores := openStores(t, dir, kind)
			if err := errors.Join(stores.Log.StoreLogs(entries(1, 10)), stores.Close(),
				os.RemoveAll(kind.path(dir))); err != nil {
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
	dir := t.TempDir()
	const text = "log-end 1 00000000000000001234 00000000000000000007 110c1e6b\n"
	want := entryID{1234, 7}
	if got := string(formatMark(want)); got != text {
		t.Errorf("%q, want %q", got, text)
	}
	if err := os.WriteFile(filepath.Join(dir, markFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readMark(wal.Dir(dir)); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
}
