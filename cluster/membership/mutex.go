package membership

import (
	"context"
	"fmt"

	"holdfast/cluster/peer"
)

// ctxMutex is a lock that is waited for no longer than a context lasts.
type ctxMutex chan struct{}

func newCtxMutex() ctxMutex { return make(ctxMutex, 1) }

func (t ctxMutex) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: another change of the cluster is under way: %w", peer.ErrNotDone, ctx.Err())
	}
}

func (t ctxMutex) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t ctxMutex) unlock() { <-t }
