package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/replica"
	"holdfast/fsm"
)

// Snapshots takes, saves and restores snapshots of the state. It is safe for concurrent use.
type Snapshots struct {
	state *replica.Replica
	// has raft take a snapshot and compact the log; returns when both are done
	snapshot func() error
	// the least bytes of log entries that are applied before a snapshot is taken
	minBytes    int64
	newestBytes func() int64 // the size of the newest snapshot
	metrics     *Metrics
	log         *slog.Logger

	restoring sync.Mutex // held by Restore, so that only one snapshot at a time is in memory

	// Only Restore uses the fields below. It holds the lock of members, so that no member is added
	// or removed meanwhile.
	members interface {
		Lock(ctx context.Context) error
		Unlock()
	}
	execute func(ctx context.Context, command fsm.Command) (fsm.Result, error)
	random  func() uint64
}

// watchLogSize takes a snapshot whenever enough log was applied since the last one.
func (s *Snapshots) watchLogSize(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !s.isDue() {
			continue
		}
		if err := s.Create(); err != nil && ctx.Err() == nil {
			s.log.Warn("snapshot failed", "error", err)
		}
	}
}

// isDue reports whether enough log was applied since the last snapshot.
func (s *Snapshots) isDue() bool {
	return s.state.BytesSinceSnapshot() >= logBeforeSnapshot(s.minBytes, s.newestBytes())
}

// maxLogFactor bounds logBeforeSnapshot, in multiples of Config.SnapshotBytes: a node that starts
// applies the whole log after its snapshot.
const maxLogFactor = 4

// logBeforeSnapshot returns how many bytes of log are applied before the next snapshot is taken.
// Within bounds, that is the size of the newest snapshot, so that snapshots write no more bytes
// than the log does.
func logBeforeSnapshot(minBytes, newestBytes int64) int64 {
	return min(max(newestBytes, minBytes), maxLogFactor*minBytes)
}

// Create writes a snapshot into the snapshot store and compacts the log up to it, but keeps the
// newest Config.TrailingEntries entries. It waits for both.
func (s *Snapshots) Create() error {
	start := time.Now()
	err := s.snapshot()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil // nothing was applied since the start
	}
	if err != nil {
		return fmt.Errorf("take snapshot: %w", err)
	}
	s.metrics.observeSnapshot(time.Since(start))
	return nil
}

// Save writes a consistent, checksummed snapshot of this member's state. It returns the index of
// the last log entry that the snapshot covers.
func (s *Snapshots) Save(w io.Writer) (uint64, error) {
	snapshot := s.state.Capture()
	defer snapshot.Release()
	return snapshot.Index(), snapshot.Write(w)
}
