package raftlog

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

const entrySize = segmentSize / 16

// bigEntry returns an entry of entrySize bytes. Sixteen of them fill a segment.
func bigEntry(index uint64) []*raft.Log {
	return []*raft.Log{{Index: index, Term: 7, Type: raft.LogConfiguration, Data: bytes.Repeat([]byte{byte(index)}, entrySize)}}
}

// sealedWAL returns the files of a WAL at two moments: before the last write to its first segment, and after that write, while the metadata does not say
// yet that the segment is sealed. last is the index of the entry that the write adds.
func sealedWAL(t *testing.T) (before, after map[string]savedFile, last uint64) {
	dir := t.TempDir()
	stores := openStores(t, dir, WAL)
	defer func() {
		if err := stores.Close(); err != nil {
			t.Error(err)
		}
	}()
	for last = 1; last*entrySize < segmentSize; last++ {
		if err := stores.Log.StoreLogs(bigEntry(last)); err != nil {
			t.Fatal(err)
		}
	}
	before = readTree(t, dir)
	for index := last; index < last+2; index++ { // the second append waits until raft-wal has begun a new segment
		if err := stores.Log.StoreLogs(bigEntry(index)); err != nil {
			t.Fatal(err)
		}
	}
	after = make(map[string]savedFile)
	for name, file := range before {
		if after[name] = file; filepath.Ext(name) == ".wal" {
			sealed, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			after[name] = saved(sealed)
		}
	}
	return before, after, last
}

// † After a crash around the last write to a segment, the log has all acknowledged entries and accepts new ones, whatever part of the write is lost.
// raft-wal v0.4.2 by itself refuses new entries then.
func TestWALGoesOnAfterACrashAtTheEndOfASegment(t *testing.T) {
	before, after, last := sealedWAL(t)
	segment := ""
	for name := range after {
		if filepath.Ext(name) == ".wal" {
			segment = name
		}
	}
	end := len(after[segment].data) // offset of the end of the commit frame
	const commitFrame = 8
	for name, test := range map[string]struct {
		lost func(written []byte) // clears what a crash has lost of the last write
		last uint64
	}{
		"the metadata":             {func([]byte) {}, last},
		"the commit":               {func(b []byte) { clear(b[end-commitFrame : end]) }, last - 1},
		"a page of the entry":      {func(b []byte) { clear(b[end-entrySize/2 : end-entrySize/2+4096]) }, last - 1},
		"the end of the index":     {func(b []byte) { clear(b[end-commitFrame-8 : end]) }, last - 1},
		"all but the index":        {func(b []byte) { clear(b[end-commitFrame : end]); clear(b[end-entrySize*3/4 : end-4096]) }, last - 1},
		"all of the write":         {func(b []byte) { clear(b[copy(b, before[segment].data):]) }, last - 1},
		"all behind the beginning": {func(b []byte) { clear(b[end-entrySize/2 : end]) }, last - 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir, files := t.TempDir(), maps.Clone(after)
			damaged := savedFile{bytes.Clone(after[segment].data), after[segment].size}
			test.lost(damaged.data)
			files[segment] = damaged
			writeTree(t, dir, files)
			for next := test.last + 1; next < test.last+3; next++ { // goes on, and does so again after a restart
				stores := openStores(t, dir, WAL)
				has, err := stores.Log.LastIndex()
				if err != nil || has != next-1 {
					t.Fatalf("the log ends at %d, want %d: %v", has, next-1, err)
				}
				ended := func(err error) { t.Error(err) }
				log := NewCheckedLog(stores.Log, Guard{Deadline: time.Minute, Exit: ended}, 1)
				if err := log.StoreLogs(bigEntry(next)); err != nil {
					t.Fatal(err)
				}
				for index := uint64(1); index <= next; index++ {
					var got raft.Log
					if err := log.GetLog(index, &got); err != nil || !bytes.Equal(got.Data, bigEntry(index)[0].Data) {
						t.Fatalf("entry %d, after %d: %v", index, next, err)
					}
				}
				if err := stores.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
