package propose

import (
	"errors"

	"github.com/hashicorp/raft"
)

// ErrSkipped says that the state machine skipped an entry, because it was not the next entry of the
// current leadership.
var ErrSkipped = errors.New("the state machine skipped the entry")

// OutcomeUnknown reports whether an entry whose future ended with this error may still take effect.
// Only three errors of raft's Apply say that it will not. Any other error leaves it open, also one
// that a later version of raft adds. nil means here that the entry was applied and that the state
// machine skipped it.
func OutcomeUnknown(err error) bool {
	return err != nil &&
		!errors.Is(err, raft.ErrNotLeader) &&
		!errors.Is(err, raft.ErrEnqueueTimeout) &&
		!errors.Is(err, raft.ErrLeadershipTransferInProgress)
}
