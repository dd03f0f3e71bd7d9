package role

import (
	"context"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/publish"
)

// Outbox is where a leader puts what it publishes.
type Outbox interface {
	// Send queues an output on the connection on which its client receives everything, and returns the outputs that are given up because of it.
	Send(client string, o *publish.Output) (givenUp []*publish.Output)
}

// Leader is the role of a node while it serves: it executes and answers requests. It is a publish.Handler. All methods are safe for concurrent use.
type Leader struct {
	*Requests
	barrier   *ingest.Barrier
	begun     func() time.Time // when the node's own session began
	clients   *Clients
	outbox    Outbox
	watermark publish.Watermark
	open      bool            // requests go to the store as they come
	silent    bool            // the entry that is being applied has an outcome that no client is told
	answered  []fsm.RequestID // outside of the log, and not reported yet
}

// NewLeader returns a leader that does not serve yet. Begun returns when the node's own session began.
func NewLeader(requests *Requests, barrier *ingest.Barrier, begun func() time.Time, clients *Clients) *Leader {
	return &Leader{Requests: requests, barrier: barrier, begun: begun, clients: clients}
}

// Run reports what is answered, and takes up what passed this node by, until the context ends. Then the node follows again.
func (l *Leader) Run(ctx context.Context) {
	var working sync.WaitGroup
	working.Go(func() { l.reportAnswered(ctx) })
	working.Go(func() { l.sweep(ctx) })
	<-ctx.Done()
	l.sendReport(context.WithoutCancel(ctx), l.stopServing()) // else the next leader answers them again
	l.recheckPending()
	working.Wait()
}
