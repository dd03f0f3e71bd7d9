package raftlog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A log that lost acknowledged entries at its end is not opened. One that lost nothing is, whatever a crash left of the mark.
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
		last   uint64 // of the log that is opened; 0 if it is not
	}{
		{"nothing", func(*testing.T, string, Kind) {}, 10},
		{"the last entry is lost", func(t *testing.T, dir string, kind Kind) {
			behind(t, dir, kind, func(store logAndVotes) error { return store.DeleteRange(10, 10) })
		}, 0},
		{"all entries are lost", func(t *testing.T, dir string, kind Kind) {
			behind(t, dir, kind, func(store logAndVotes) error { return store.DeleteRange(1, 10) })
		}, 0},
		{"the power fails, and the mark is an old one", func(t *testing.T, dir string, _ Kind) { writeMark(t, dir, string(formatMark(4))) }, 10},
		{"a crash before the mark is written", func(t *testing.T, dir string, kind Kind) {
			behind(t, dir, kind, func(store logAndVotes) error { return store.StoreLogs(entries(11, 12)) })
		}, 12},
		{"the mark is empty", func(t *testing.T, dir string, _ Kind) { writeMark(t, dir, "") }, 10},
		{"the mark is damaged", func(t *testing.T, dir string, _ Kind) { writeMark(t, dir, "log-end 1 00000000000000000999 00000000\n") }, 10},
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
				if mark, err := readMark(filepath.Join(dir, markFile)); err != nil || mark != test.last+3 {
					t.Errorf("mark %d, %v; want %d", mark, err, test.last+3)
				}
			})
		}
	}
}

// Deletions that raft asks for lower the mark before they are made, so a crash at any time leaves a log that can be opened.
func TestMarkIsLoweredBeforeTheEndIsDeleted(t *testing.T) {
	for _, test := range []struct {
		name        string
		first, last uint64
		mark        uint64
	}{
		{"a conflict with a new leader", 8, 10, 7},
		{"compaction", 1, 6, 10},
		{"the whole log", 1, 10, 0},
		{"the whole log and more", 1, 99, 0},
	} {
		for _, kind := range []Kind{BoltDB, WAL} {
			t.Run(test.name+", "+string(kind), func(t *testing.T) {
				dir := t.TempDir()
				stores := openStores(t, dir, kind)
				if err := stores.Log.StoreLogs(entries(1, 10)); err != nil {
					t.Fatal(err)
				}
				store := stores.Log.(*markedLog)
				whenDeleted := ^uint64(0)
				store.logAndVotes = deletions{store.logAndVotes, func() {
					mark, err := readMark(filepath.Join(dir, markFile))
					if err != nil {
						t.Error(err)
					}
					whenDeleted = mark
				}}
				if err := errors.Join(stores.Log.DeleteRange(test.first, test.last), stores.Close()); err != nil {
					t.Fatal(err)
				}
				if whenDeleted != test.mark {
					t.Errorf("mark %d when entries were deleted, want %d", whenDeleted, test.mark)
				}
				if err := openStores(t, dir, kind).Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// deletions calls a function before each deletion.
type deletions struct {
	logAndVotes
	before func()
}

func (d deletions) DeleteRange(first, last uint64) error {
	d.before()
	return d.logAndVotes.DeleteRange(first, last)
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
func TestFormatOfTheMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), markFile)
	const text = "log-end 1 00000000000000001234 ba57f92f\n"
	if got := string(formatMark(1234)); got != text {
		t.Errorf("%q, want %q", got, text)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if mark, err := readMark(path); err != nil || mark != 1234 {
		t.Errorf("%d, %v", mark, err)
	}
}
