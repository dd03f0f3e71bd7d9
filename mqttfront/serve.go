package mqttfront

import (
	"context"
	"fmt"
	"sync"
)

// newLeader returns a leader that does not serve yet.
func (f *Front) newLeader() *leader {
	return &leader{requests: f.requests, barrier: f.barrier, begun: f.session.Begun, clients: f.clients}
}

// Serve implements the leader's part: it takes over the outgoing connections, answers what the last leader left unanswered,
// and then whatever comes, until the context ends. The error says why it ended.
func (f *Front) Serve(ctx context.Context, term uint64) error {
	select {
	case <-f.hasStore:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l := f.newLeader()
	var held heldElsewhere
	var collecting sync.WaitGroup
	ready, isReady := context.WithCancel(ctx)
	collecting.Go(func() { held = l.collectForTakeover(ctx, ready) })
	defer collecting.Wait()
	defer isReady()
	connections, err := f.outbox.TakeOver(ctx, l)
	if err != nil {
		return fmt.Errorf("take over the publishing connections: %w", err)
	}
	defer connections.Close()
	isReady()
	collecting.Wait()
	l.outbox = connections
	if f.newLeaderSession != nil {
		l.session = f.newLeaderSession()
	}
	l.begin(held)
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	working.Go(func() { l.reportAnswered(ctx) })
	working.Go(func() { l.sweep(ctx) })
	if l.session != nil {
		working.Go(func() { l.session.Run(ctx) })
	}
	f.log.Info("serving", "term", term)
	for {
		select {
		case <-ctx.Done():
			l.sendReport(context.WithoutCancel(ctx), l.stopServing()) // else the next leader answers them again
			f.recheckPending()
			return context.Cause(ctx)
		case d := <-f.disconnects.Disconnects():
			f.clients.endWatches(d)
		}
	}
}
