package mqttfront

import (
	"context"
	"fmt"
	"sync"
)

// Serve implements the store's observer: it does the leader's work in one leadership. It takes over
// the publishing connections, publishes what the earlier leader did not, and then takes over the
// cluster's session and serves its requests, until the context ends. The error is the context's
// cause.
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
	place := f.session.Place() // all connections of a leadership go there
	watching.Go(func() {
		if err := f.session.AwaitMove(ctx, place); err != nil {
			stop(err)
		}
	})
	requests := f.leading.newSession()
	l := f.dispatcher.NewLeader(f.clients, requests.Reconnect)
	connections, err := f.outbox.Connect(ctx, l)
	if err != nil {
		return fmt.Errorf("take over the publishing connections: %w", err)
	}
	defer connections.Close()
	f.dispatcher.Begin(l, connections)
	f.leading.session.Store(requests)
	defer f.leading.session.Store(nil)
	var working sync.WaitGroup
	working.Go(func() { requests.Run(ctx) })
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
	f.dispatcher.Lead(ctx, l)
	working.Wait()
	return context.Cause(ctx)
}
