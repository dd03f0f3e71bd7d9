package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
)

// ErrRolledBack says that this member's log ends before an entry that the member has had on its
// disk.
var ErrRolledBack = errors.New(
	"this member has lost entries that it had acknowledged: its data folder was put back to an older copy. " +
		"Stop it, empty its data folder, and start it: it joins anew")

// checkRolledBack returns ErrRolledBack if a member has recorded that this one had more of the log
// than up to the index last.
func checkRolledBack(id raft.ServerID, last uint64, status *peer.Status) error {
	if had := status.Acknowledged[id]; had > last {
		return fmt.Errorf("%w: its log ends at %d, and %s knows that it had entry %d",
			ErrRolledBack, last, peer.NodeName(status.ID), had)
	}
	return nil
}

// checkAcknowledged asks the other members, before this one votes, what it has had on its disk. It
// waits for their answers for patience at most: when all members start together, none remembers
// anything. last is the index of the last entry.
func checkAcknowledged(ctx context.Context, asking *peer.Statuses, id raft.ServerID, last uint64,
	patience time.Duration,
) error {
	for _, answer := range asking.Poll(ctx, patience) {
		if err := checkRolledBack(id, last, &answer.Status); err != nil {
			return err
		}
	}
	return nil
}

// exit ends the process. If the reason is that this member's state and the cluster's log differ,
// the data folder is marked first: after a restart raft would replace the entries, and nothing
// would show that.
func (e *Environment) exit(reason error) {
	if errors.Is(reason, raftlog.ErrDiverged) && e.Stores.MarkDiverged != nil {
		reason = errors.Join(reason, e.Stores.MarkDiverged(reason))
	}
	e.Exit(reason)
}
