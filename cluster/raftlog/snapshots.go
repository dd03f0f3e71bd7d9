package raftlog

import (
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// SnapshotStore knows the newest snapshot without looking at the disk, and measures each that is written. It is safe for concurrent use.
type SnapshotStore struct {
	raft.SnapshotStore
	written func(bytes int64)
	newest  atomic.Pointer[position]
}

// position is where a snapshot ends.
type position struct{ index, term uint64 }

// NewSnapshotStore returns a store over another. It calls written with the size of each snapshot, taken here or received, after each Close that
// succeeds.
func NewSnapshotStore(store raft.SnapshotStore, written func(bytes int64)) (*SnapshotStore, error) {
	s := &SnapshotStore{SnapshotStore: store, written: written}
	list, err := store.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	if len(list) > 0 {
		s.newest.Store(&position{list[0].Index, list[0].Term})
	}
	return s, nil
}

// Newest returns the index and the term of the newest snapshot, 0 where there is none.
func (s *SnapshotStore) Newest() (index, term uint64) {
	if newest := s.newest.Load(); newest != nil {
		return newest.index, newest.term
	}
	return 0, 0
}

// Create implements raft.SnapshotStore.
func (s *SnapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	if err != nil {
		return nil, err
	}
	return &meteredSink{SnapshotSink: sink, store: s, end: position{index, term}}, nil
}

type meteredSink struct {
	raft.SnapshotSink
	store *SnapshotStore
	end   position
	bytes int64
	done  bool
}

func (s *meteredSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	s.bytes += int64(n)
	return n, err
}

func (s *meteredSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil && !s.done { // raft closes once more what the state machine has closed
		s.done = true
		s.store.newest.Store(&s.end)
		s.store.written(s.bytes)
	}
	return err
}

var _ raft.SnapshotSink = (*meteredSink)(nil)
