package propose

import (
	"errors"

	"github.com/hashicorp/raft"
)

// ErrSkipped says that the state machine skipped an entry, because it was not the next of the serving leader.
var ErrSkipped = errors.New("the state machine skipped the entry")

// OutcomeUnknown reports whether an entry whose future ended with this error may still take effect. Only three errors of
// raft's Apply say that it will not. Everything else, also whatever may be added one day, is ambiguous. nil means here that
// the entry was applied and skipped.
func OutcomeUnknown(err error) bool {
	return err != nil &&
		!errors.Is(err, raft.ErrNotLeader) &&
		!errors.Is(err, raft.ErrEnqueueTimeout) &&
		!errors.Is(err, raft.ErrLeadershipTransferInProgress)
}
