package raftlog

import (
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"
)

// A snapshot in a file is synced each mebibyte while it is written, and has all its bytes. A fault
// of the disk ends the writing.
func TestFileOfASnapshotIsSyncedOnTheWay(t *testing.T) {
	stores, err := OpenStores(t.TempDir(), BoltDB, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stores.Close(); err != nil {
			t.Error(err)
		}
	})
	create := func() *syncedSink {
		sink, err := stores.Snapshots.Create(1, 5, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return sink.(*syncedSink)
	}
	sink := create()
	syncs, sync := 0, sink.sync
	sink.sync = func() error {
		syncs++
		return sync()
	}
	for range 10 {
		if _, err := sink.Write(make([]byte, syncInterval/4)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(sink.Close(), sink.Close()); err != nil || syncs != 2 {
		t.Errorf("%d syncs, %v", syncs, err)
	}
	_, file, err := stores.Snapshots.Open(sink.ID())
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(file)
	if err := errors.Join(err, file.Close()); err != nil || len(content) != 10*syncInterval/4 {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	broken := create()
	fault := errors.New("disk")
	broken.sync = func() error { return fault }
	if _, err := broken.Write(make([]byte, syncInterval)); !errors.Is(err, fault) {
		t.Errorf("%v", err)
	}
	if err := broken.Cancel(); err != nil {
		t.Error(err)
	}
}
