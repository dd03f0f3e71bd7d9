package role

import (
	"context"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/publish"
)

// Sender queues what a leader publishes.
type Sender interface {
	// Send queues an output on the connection on which its client receives everything, and returns the outputs that are given up because of it.
	Send(client string, o *publish.Output) (givenUp []*publish.Output)
}

// Leader is the role of a node while it serves: it executes and answers requests. It is a publish.Handler. All methods are safe for concurrent use.
type Leader struct {
	*Requests
	barrier         *ingest.Barrier
	deliveringSince func() time.Time // see ingest.NodeSession
	clients         *Clients
	sender          Sender
	watermark       publish.Watermark
	serving         bool            // new requests go to the store on arrival
	silent          bool            // the entry that is being applied has an outcome that no client is told
	toRelease       []fsm.RequestID // requests that peers need not hold; not yet broadcast
	// earlier has the requests that earlier leaders executed and this one answers. The value is true when the reply is published. What this leader
	// executes is never in it, so it does not grow with the leadership.
	earlier map[fsm.RequestID]bool
}

// NewLeader returns a leader that does not serve yet. deliveringSince is that of the node's own session.
func NewLeader(requests *Requests, barrier *ingest.Barrier, deliveringSince func() time.Time, clients *Clients) *Leader {
	return &Leader{Requests: requests, barrier: barrier, deliveringSince: deliveringSince, clients: clients}
}

// Run tells the peers what is answered, and takes up the requests that this node's own session missed, until the context ends.
// Then the node follows again.
func (l *Leader) Run(ctx context.Context) {
	var working sync.WaitGroup
	working.Go(func() { l.reportAnswered(ctx) })
	working.Go(func() { l.sweep(ctx) })
	<-ctx.Done()
	l.sendReport(context.WithoutCancel(ctx), l.stopServing()) // else the next leader answers them again
	l.recheckPending()
	working.Wait()
}
