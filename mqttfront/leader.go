package mqttfront

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/publish"
)

// outbox is where a leader puts what it publishes.
type outbox interface {
	// Send queues an output on the connection on which its client receives everything, and returns the outputs that are given up because of it.
	Send(client string, o *publish.Output) (givenUp []*publish.Output)
}

// leader is the role of a node while it serves: it executes and answers requests.
type leader struct {
	*requests
	barrier   *ingest.Barrier
	begun     func() time.Time // when the node's own session began
	clients   *clients
	session   *ingest.LeaderSession // nil where each node's own session brings requests
	outbox    outbox
	watermark publish.Watermark
	open      bool            // requests go to the store as they come
	silent    bool            // the entry that is being applied has an outcome that no client is told
	answered  []fsm.RequestID // outside of the log, and not reported yet
}
