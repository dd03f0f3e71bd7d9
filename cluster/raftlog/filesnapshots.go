package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// syncInterval is how many bytes of a snapshot are written before they are synced. A sync of the
// log also waits for the unsynced data of other files. So a snapshot must never have much unsynced
// data.
const syncInterval = 1 << 20

// fileSnapshots is raft's store of snapshots in files. It syncs a snapshot while it is written, and
// not only at its end.
type fileSnapshots struct {
	*raft.FileSnapshotStore
	dataDir string
}

// Create implements raft.SnapshotStore.
func (s fileSnapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.FileSnapshotStore.Create(version, index, term, configuration, configurationIndex,
		transport)
	if err != nil {
		return nil, err
	}
	// The sink does not export its file. So Create opens the file a second time, at the path that
	// raft v1.7.3 uses. A sync through either descriptor syncs it.
	file, err := os.OpenFile(filepath.Join(s.dataDir, "snapshots", sink.ID()+".tmp", "state.bin"),
		os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("create snapshot: %w", errors.Join(err, sink.Cancel()))
	}
	return &syncedSink{SnapshotSink: sink, sync: file.Sync, release: file.Close}, nil
}

type syncedSink struct {
	raft.SnapshotSink
	sync     func() error
	release  func() error
	unsynced int // bytes written since the last sync
	closed   bool
}

func (s *syncedSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	if s.unsynced += n; err != nil || s.unsynced < syncInterval {
		return n, err
	}
	s.unsynced = 0
	if err := s.sync(); err != nil {
		return n, fmt.Errorf("sync snapshot: %w", err)
	}
	return n, nil
}

func (s *syncedSink) Close() error {
	s.end()
	return s.SnapshotSink.Close()
}

func (s *syncedSink) Cancel() error {
	s.end()
	return s.SnapshotSink.Cancel()
}

// end closes the second descriptor, once: raft closes a sink twice. The error is ignored, because
// raft's own descriptor reports a failed write.
func (s *syncedSink) end() {
	if !s.closed {
		s.closed = true
		_ = s.release()
	}
}
