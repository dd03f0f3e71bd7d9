package role

import (
	"context"
	"time"

	"holdfast/fsm"
)

// Store is the replicated state machine, as the front end uses it. If Propose or Read returns true, the tag comes back
// exactly once, through Applied, ReadDone or Failed of Dispatcher.
type Store interface {
	// Propose queues a command for the log and reports whether this node took it up. The caller calls Flush after the last command of a burst.
	Propose(command fsm.Command, tag any) bool
	// Read queues a GET or a SCAN and reports whether this node took it up. It is read after the next Flush.
	Read(command *fsm.Command, tag any) bool
	// Flush makes the store process what is queued: the commands of a burst make one log entry, and its reads one round of reads.
	Flush()
	// Confirm returns nil when this node led at some moment after the call.
	Confirm(ctx context.Context) error
	// View runs f with the state, never concurrently with Applied or Restored. Other Views and ReadDone may run at the same time.
	View(f func(*fsm.Machine))
	// Alone reports whether this node is the only member.
	Alone() bool
	// Broadcast gives a message to the HandleBroadcast of the front ends of all other nodes that can be reached in time.
	Broadcast(ctx context.Context, message []byte)
	// CollectHeld calls handlePage with each page of the requests that the other nodes have held for at least age. The calls come in order for each node,
	// and concurrently for several. last says that the node has sent all pages.
	CollectHeld(ctx context.Context, age time.Duration, handlePage func(node string, page []byte, last bool))
	// ClusterClock returns the cluster's clock in milliseconds since the Unix epoch: a median of the members' wall clocks. It is valid while this node leads.
	ClusterClock() int64
	// SetPublished raises the delivery watermark: no reply or notification of an entry up to the log index is outstanding.
	SetPublished(index uint64)
}
