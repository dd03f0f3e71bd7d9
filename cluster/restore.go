package cluster

import (
	"context"
	"fmt"
	"io"

	"holdfast/fsm"
)

// maxRestore bounds a snapshot that is restored: it is in memory for a while, on every member.
const maxRestore = 4 << 30

// Restore replaces the keys of the whole cluster by those of a snapshot. It goes through the log, in parts, so that every
// replica does it at the same index, or none. The clocks become the later ones of both, so that no version is given twice and
// cluster time does not go back. A damaged snapshot is refused, and so is one of a newer version. Only the leader can do it.
// The error is ErrNotLeader elsewhere, ErrRefused or ErrNotDone where nothing was changed, else ErrOutcomeUnknown.
func (n *Node) Restore(ctx context.Context, snapshot io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(snapshot, maxRestore+1))
	if err != nil {
		return fmt.Errorf("%w: read the snapshot: %w", ErrRefused, err)
	}
	if len(data) > maxRestore {
		return fmt.Errorf("%w: the snapshot is larger than %d bytes", ErrRefused, maxRestore)
	}
	status, err := fsm.CheckSnapshot(data)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	inForce := n.replica.status().Version
	if inForce < fsm.VersionRestore || status.Version > inForce {
		return fmt.Errorf("%w: version %d of the log is in force, and the snapshot is of %d: upgrade every member first", ErrRefused, inForce, status.Version)
	}
	if err := n.changing.lock(ctx); err != nil {
		return err
	}
	defer n.changing.unlock()
	nonce := n.world.Random()
	for offset := 0; offset < len(data); offset += fsm.MaxStage {
		part := data[offset:min(offset+fsm.MaxStage, len(data))]
		result, err := n.Execute(ctx, fsm.Command{Kind: fsm.KindStage, Nonce: nonce, Offset: uint64(offset), Value: part})
		if err != nil || result.Code != fsm.CodeOK {
			// Nothing is replaced before the last word, and that is never said now.
			return fmt.Errorf("%w: the leader changed meanwhile: %w", ErrNotDone, err)
		}
	}
	result, err := n.Execute(ctx, fsm.Command{Kind: fsm.KindRestore, Nonce: nonce, Offset: uint64(len(data))})
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if result.Code != fsm.CodeOK {
		return fmt.Errorf("%w: the leader changed meanwhile", ErrNotDone)
	}
	n.world.Log.Warn("the keys were replaced by those of a snapshot", "keys", status.Keys, "snapshot_index", status.Index)
	return nil
}
