package cluster

import (
	"context"
	"time"

	"holdfast/fsm"
)

// Observer has the methods of the front end that the cluster calls. The cluster may call several of
// them at the same time.
//
// It calls Applied, Restored and ReadDone with the state locked. They must return quickly. Of the
// Node's methods they may call only Propose, Read and Flush, which do not block. Applied and
// Restored are called in the order of the log, one at a time.
type Observer interface {
	// Applied is called on every member for each entry that it applies. The outcome must not be
	// changed.
	//
	// On the member whose current leadership proposed the entry, tags has one element for each
	// command, the tag that was given to Propose; the tag of a command of Node.Execute is nil. On
	// all other members, and for an entry that the state machine skipped, tags itself is nil.
	Applied(outcome *fsm.EntryOutcome, tags []any)
	// Restored is called after a snapshot has replaced the state, with the new state's status.
	// Applied is not called for the entries that the snapshot covers and that this member had not
	// applied.
	Restored(status fsm.Status)
	// ReadDone is called with the result of a Read and its tag. index is the applied index at which
	// the state was read.
	ReadDone(tag any, index uint64, result fsm.Result)
	// Failed is called with the tag of a command or a read that gets no result from this
	// leadership. It must return quickly. The command may have an effect, now or later. If invalid
	// is true, it has none, and must not be proposed again: it cannot be encoded.
	Failed(tag any, invalid bool)
	// Serve is called on a goroutine of its own when this node begins to lead in a raft term. It
	// may call Propose until it returns. The context ends with the leadership. If Serve returns
	// before that, the leadership ends: the error says why. If this node is still raft's leader
	// then, it begins a new leadership in the same term with another LeaderStart, and calls Serve
	// again.
	Serve(ctx context.Context, term uint64) error
	// BrokerDownFor returns for how long this member has been unable to serve clients, because a
	// broker connection is down or silent. If several are, the longest time counts. It returns 0 if
	// none is.
	BrokerDownFor() time.Duration
}
