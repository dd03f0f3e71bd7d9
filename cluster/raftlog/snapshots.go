package raftlog

import "github.com/hashicorp/raft"

// SnapshotStore calls Written with the size of each snapshot, taken here or received, after each Close that succeeds.
type SnapshotStore struct {
	raft.SnapshotStore
	Written func(bytes int64)
}

// Create implements raft.SnapshotStore.
func (s SnapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	if err != nil {
		return nil, err
	}
	return &meteredSink{SnapshotSink: sink, written: s.Written}, nil
}

type meteredSink struct {
	raft.SnapshotSink
	bytes   int64
	written func(int64)
}

func (s *meteredSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	s.bytes += int64(n)
	return n, err
}

func (s *meteredSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil {
		s.written(s.bytes)
	}
	return err
}

var _ raft.SnapshotSink = (*meteredSink)(nil)
