package mqttfront

import (
	"context"
	"fmt"
	"sync"

	"holdfast/mqttfront/role"
)

// Serve implements the store's observer: it does the leader's work in one leadership. It takes over the publishing connections, answers the requests that
// earlier leaders left unanswered, and then serves new requests, until the context ends. The error is the context's cause.
func (f *Front) Serve(ctx context.Context, term uint64) error {
	select {
	case <-f.hasStore:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f.exclusive.AwaitAlone(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer func() {
		stop(nil)
		watching.Wait()
	}()
	watching.Go(func() { stop(f.exclusive.AwaitOther(ctx)) })
	leader := f.dispatcher.NewLeader(f.barrier, f.session.DeliveringSince, f.clients)
	var held role.PeerRequests
	var collecting sync.WaitGroup
	untilConnected, stopCollecting := context.WithCancel(ctx) // ends when the publishing connections are up; until then CollectFromPeers asks again
	collecting.Go(func() { held = leader.CollectFromPeers(ctx, untilConnected) })
	defer collecting.Wait()
	defer stopCollecting()
	connections, err := f.outbox.Connect(ctx, leader)
	if err != nil {
		return fmt.Errorf("take over the publishing connections: %w", err)
	}
	defer connections.Close()
	stopCollecting()
	collecting.Wait()
	f.dispatcher.BeginLeading(leader, held, connections)
	var working sync.WaitGroup
	if f.leading.newSession != nil {
		session := f.leading.newSession()
		f.leading.session.Store(session)
		defer f.leading.session.Store(nil)
		working.Go(func() { session.Run(ctx) })
	}
	f.leading.serving.Store(true)
	f.exclusive.Serving()
	defer f.leading.serving.Store(false)
	working.Go(func() { f.mirror.Run(ctx) })
	working.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case d := <-f.disconnects.Disconnects():
				f.clients.EndWatches(d)
			}
		}
	})
	f.log.Info("serving", "term", term)
	f.dispatcher.Lead(ctx, leader)
	working.Wait()
	return context.Cause(ctx)
}
