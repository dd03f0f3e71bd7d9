package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// watchLogSize takes a snapshot whenever enough log was written since the last one.
func (n *Node) watchLogSize(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if n.log.StoredBytes() < n.config.SnapshotBytes {
			continue
		}
		if err := n.TakeSnapshot(); err != nil && ctx.Err() == nil {
			n.world.Log.Warn("snapshot failed", "error", err)
		}
	}
}

// TakeSnapshot writes a snapshot into the snapshot store and cuts the log behind it. It waits for the end of it.
func (n *Node) TakeSnapshot() error {
	start := time.Now()
	err := n.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		n.log.ResetStored()
		return nil
	}
	if err != nil {
		return fmt.Errorf("take snapshot: %w", err)
	}
	n.world.Metrics.snapshotTaken(time.Since(start))
	return nil
}

// SaveSnapshot writes a consistent, checksummed snapshot of this member's state and returns the log index it holds.
func (n *Node) SaveSnapshot(w io.Writer) (uint64, error) {
	snapshot := n.replica.Capture()
	return snapshot.Index(), snapshot.Write(w)
}
