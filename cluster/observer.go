package cluster

import (
	"context"
	"time"

	"holdfast/fsm"
)

// Observer is told of everything that happens, in order. It is implemented by the front end.
type Observer interface {
	// Applied is called for each entry on every member, in the order of the log, with the state locked: it must be quick and
	// must not call back into the node. tags are those given to Propose, aligned with the outcome's commands, or nil when
	// this leadership did not propose the entry. The outcome must not be changed.
	Applied(outcome *fsm.Outcome, tags []any)
	// Restored follows when a snapshot has replaced the state: entries in between are not told of. The same restrictions hold.
	Restored()
	// ReadDone answers a Read with the state as it is after the entry at index. The same restrictions hold.
	ReadDone(tag any, index uint64, result fsm.Result)
	// Failed gives back what was proposed or read in vain. unknown says that the command may still take effect, or has;
	// otherwise it definitely has not and will not. It must be quick.
	Failed(tag any, unknown bool)
	// Serve is called in a goroutine of its own when this node has begun to lead in a raft term, and may propose until it
	// returns. The context ends with the leadership. An error gives the leadership up for now; it is tried again.
	Serve(ctx context.Context, term uint64) error
	// HandleBroadcast is called with what the observer of another member gave to Broadcast.
	HandleBroadcast(message []byte)
	// Held returns a page of what the observer holds and has held for as long as age, from a cursor that begins at 0, and the
	// next cursor, 0 at the end.
	Held(cursor uint64, age time.Duration) (page []byte, next uint64)
	// BrokerDownFor returns for how long this node could not have answered clients, even if it led; 0 is well.
	BrokerDownFor() time.Duration
}
