package cluster

import (
	"context"
	"time"

	"holdfast/fsm"
)

// Observer is what the cluster calls of the front end. Its methods must be safe for concurrent use. Applied and Restored come in the order of the log,
// one at a time.
type Observer interface {
	// Applied is called for each entry on every member, in the order of the log, with the state locked. It must be quick. Of the node it may call
	// Propose, Read and Flush alone, which never wait. The outcome must not be changed.
	//
	// tags are those given to Propose, one for each of the outcome's commands; nil for a command that the node itself proposed. tags is nil if this
	// leadership did not propose the entry, or the entry was skipped.
	Applied(outcome *fsm.EntryOutcome, tags []any)
	// Restored is called after a snapshot has replaced the state, with the status of the new one. Applied is not called for the entries
	// that the snapshot covers and that this member had not applied. The same restrictions hold.
	Restored(status fsm.Status)
	// ReadDone answers a Read with the state as it is after the entry at index. The same restrictions hold.
	ReadDone(tag any, index uint64, result fsm.Result)
	// Failed says that a command or a read has no result. tag is the one given to Propose or Read. unknown says that the command may still take
	// effect, or has, or must not be proposed again. Otherwise it has no effect and will have none. It must be quick.
	Failed(tag any, unknown bool)
	// Serve is called in a goroutine of its own when this node has begun to lead in a raft term, and may propose until it returns. The context ends
	// with the leadership. An error, or a return before that, ends this leadership but not raft's: the node proposes another LeaderStart and calls
	// Serve again.
	Serve(ctx context.Context, term uint64) error
	// HandleBroadcast is called with what the observer of another member gave to Broadcast.
	HandleBroadcast(message []byte)
	// Held returns a page of the requests that the observer holds, from a cursor that begins at 0, and the next cursor, 0 at the
	// end. With an age above 0 it omits requests held for a shorter time, and requests with an outcome for which no report is awaited.
	Held(cursor uint64, age time.Duration) (page []byte, next uint64)
	// BrokerDownFor returns for how long a broker connection that is needed to serve clients has been down or silent: the longest time of several, 0 if none
	// is.
	BrokerDownFor() time.Duration
}
