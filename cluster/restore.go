package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// errRestoring ends a leadership for as long as a snapshot is restored.
var errRestoring = errors.New("a snapshot is being restored")

// restoreTimeout bounds the wait for a majority to have the restored state.
const restoreTimeout = time.Minute

// Restore replaces the state of the whole cluster by that of a snapshot. A damaged one is refused. The clocks are those of the
// snapshot or, where these are later, of the cluster, so that no version is given twice, every fencing token that was given
// stays older than the next, and cluster time does not go back. Nothing is served meanwhile. Only the leader can do it; the
// error is ErrNotLeader elsewhere, ErrRefused where nothing was changed.
func (n *Node) Restore(ctx context.Context, snapshot io.Reader) error {
	restored := fsm.New()
	if err := restored.Restore(snapshot); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if version := restored.Status().Version; version > max(n.replica.status().Version, 1) {
		return fmt.Errorf("%w: the snapshot is of a cluster with version %d of the log: upgrade every member first", ErrRefused, version)
	}
	n.changing.Lock()
	defer n.changing.Unlock()
	if err := n.Confirm(ctx); err != nil {
		return err
	}
	resume, err := n.suspend(ctx)
	if err != nil {
		return err
	}
	defer resume()
	// What was proposed before is applied, and nobody proposes any more: these are the last clocks that anybody saw.
	if err := n.raft.Barrier(n.config.Timing.DiskDeadline).Error(); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	before := n.replica.status()
	restored.Raise(fsm.Floor{Clock: before.Clock, Now: before.Now, Wall: before.Wall}, before.Version)
	spool, size, err := n.spool(restored)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	defer func() {
		_ = spool.Close() // it was read
		_ = os.Remove(spool.Name())
	}()
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: restored.Status().Index, Size: size}
	if err := n.raft.Restore(meta, spool, restoreTimeout); err != nil {
		return fmt.Errorf("%w: restore: %w", ErrOutcomeUnknown, err)
	}
	n.world.Log.Warn("the state was replaced by that of a snapshot", "keys", restored.Status().Keys, "snapshot_index", meta.Index)
	return nil
}

// spool writes the snapshot of a machine to a file, and returns it from its beginning.
func (n *Node) spool(machine *fsm.Machine) (file *os.File, size int64, err error) {
	file, err = os.CreateTemp(n.world.Stores.Folder, "restore-*.snap")
	if err != nil {
		return nil, 0, err
	}
	if err = machine.Snapshot().Write(file); err == nil {
		if size, err = file.Seek(0, io.SeekCurrent); err == nil {
			_, err = file.Seek(0, io.SeekStart)
		}
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return file, size, nil
}

// suspend ends this leadership, and begins none before resume is called.
func (n *Node) suspend(ctx context.Context) (resume func(), err error) {
	l := n.leadership.Load()
	if l == nil {
		return nil, ErrNotLeader
	}
	n.suspended.Store(true)
	l.cancel(errRestoring)
	select {
	case <-l.ended:
		return func() { n.suspended.Store(false) }, nil
	case <-ctx.Done():
		n.suspended.Store(false)
		return nil, fmt.Errorf("%w: %w", ErrRefused, ctx.Err())
	}
}
