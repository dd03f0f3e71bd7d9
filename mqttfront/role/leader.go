package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/publish"
)

// Sender queues what a leader publishes. It is safe for concurrent use.
type Sender interface {
	// Send queues an output on the connection on which its client receives everything, and returns the outputs that are given up because of it.
	Send(client string, o *publish.Output) (givenUp []*publish.Output)
	// MaxPacket returns the size in bytes of the largest packet that the broker accepts; math.MaxInt64 without a limit.
	MaxPacket() int64
}

// Leader is the role of a node in one leadership, from Dispatcher.BeginLeading until Dispatcher.Lead ends: it executes and answers requests. It is a
// publish.Handler. CollectFromPeers, BeginLeading and Lead are called once, in this order. The publish.Handler methods are safe for concurrent use.
type Leader struct {
	*tracker
	barrier         *ingest.Barrier
	deliveringSince func() time.Time // see ingest.NodeSession
	clients         *Clients
	sender          Sender

	// The fields below are guarded by tracker.mu.
	watermark publish.Watermark
	leading   bool // this is the node's role
	serving   bool // new requests go to the store on arrival
	tests     watchTests
	// unsent has an index for each outcome without a reply, and for each output that was given up at once. The delivery watermark (the log index up to which
	// no output is outstanding) moves past them when the other outputs of the entry are added (passUnsentLocked).
	unsent    []uint64
	toRelease []fsm.RequestID // requests that peers need not hold; not yet broadcast
	// inherited has the requests that an earlier leader executed and this one answers. The value is true when the reply is published or not needed any more.
	// What this leader executes is never in it, so it does not grow with the leadership.
	inherited map[fsm.RequestID]bool
}
