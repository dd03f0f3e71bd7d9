package raftlog

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// SnapshotStore is a raft.SnapshotStore that keeps the positions and sizes of the retained
// snapshots in memory. It is safe for concurrent use.
type SnapshotStore struct {
	raft.SnapshotStore
	written func(bytes int64)

	mu       sync.Mutex
	retained []snapshotInfo // positions of the retained snapshots, ascending
}

// snapshotInfo is the index and the term of the last entry in a snapshot, and the size of the
// snapshot in bytes.
type snapshotInfo struct {
	index, term uint64
	bytes       int64
}

// ErrOlderSnapshot says that a newer snapshot was received while one was written.
var ErrOlderSnapshot = errors.New("there is a newer snapshot")

// NewSnapshotStore returns a SnapshotStore over another store. It calls written with the size of
// each snapshot, taken here or received, when the Close of the snapshot's sink has succeeded.
func NewSnapshotStore(store raft.SnapshotStore, written func(bytes int64)) (*SnapshotStore, error) {
	s := &SnapshotStore{SnapshotStore: store, written: written}
	list, err := store.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	for _, snapshot := range list {
		s.retained = append(s.retained, snapshotInfo{snapshot.Index, snapshot.Term, snapshot.Size})
	}
	slices.Reverse(s.retained) // the list begins with the newest
	return s, nil
}

// Newest returns the index and the term of the newest snapshot at or below an index, 0 where there
// is none.
func (s *SnapshotStore) Newest(upTo uint64) (index, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.retained) {
		if p.index <= upTo {
			return p.index, p.term
		}
	}
	return 0, 0
}

// NewestBytes returns the size of the newest snapshot in bytes, 0 where there is none.
func (s *SnapshotStore) NewestBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.retained) == 0 {
		return 0
	}
	return s.retained[len(s.retained)-1].bytes
}

// Create implements raft.SnapshotStore. The sink's Close fails with ErrOlderSnapshot if a newer
// snapshot was closed meanwhile: raft v1.7.3 would record the older one as its last snapshot.
func (s *SnapshotStore) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex,
		transport)
	if err != nil {
		return nil, err
	}
	closed := func(bytes int64) error { return s.closed(snapshotInfo{index, term, bytes}) }
	return &meteredSink{SnapshotSink: sink, closed: closed, written: s.written}, nil
}

// closed records a snapshot whose sink was closed. It returns ErrOlderSnapshot, and records
// nothing, if there is a newer snapshot.
func (s *SnapshotStore) closed(end snapshotInfo) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.retained); n > 0 && s.retained[n-1].index > end.index {
		return ErrOlderSnapshot
	}
	s.retained = append(s.retained[max(0, len(s.retained)-retainedSnapshots+1):], end)
	return nil
}

type meteredSink struct {
	raft.SnapshotSink
	// called when the snapshot is on the disk; Close returns its error
	closed  func(bytes int64) error
	written func(bytes int64) // called once, after closed returned nil
	bytes   int64
	done    bool
}

func (s *meteredSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	s.bytes += int64(n)
	return n, err
}

func (s *meteredSink) Close() error {
	if s.done { // raft closes the sink again after the state machine has closed it
		return nil
	}
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	if err := s.closed(s.bytes); err != nil {
		return err
	}
	s.done = true
	s.written(s.bytes)
	return nil
}

var _ raft.SnapshotSink = (*meteredSink)(nil)
