package cluster

import (
	"errors"

	"github.com/hashicorp/raft"
)

var (
	// ErrNotLeader says that this node does not serve now; the command was not taken up.
	ErrNotLeader = errors.New("this node does not lead")
	// ErrOutcomeUnknown says that a command may or may not take effect.
	ErrOutcomeUnknown = errors.New("the outcome is unknown")
	// ErrNotDone says that a command had no effect and will have none.
	ErrNotDone = errors.New("the command was not executed")
	// ErrSkipped says that the state machine skipped an entry, because it was not the next of the serving leader.
	ErrSkipped = errors.New("the state machine skipped the entry")
)

// outcomeUnknown reports whether an entry whose future ended with this error may still take effect. Only three errors of
// raft's Apply say that it will not. Everything else, also whatever may be added one day, is ambiguous. nil means here that
// the entry was applied and skipped.
func outcomeUnknown(err error) bool {
	return err != nil &&
		!errors.Is(err, raft.ErrNotLeader) &&
		!errors.Is(err, raft.ErrEnqueueTimeout) &&
		!errors.Is(err, raft.ErrLeadershipTransferInProgress)
}
