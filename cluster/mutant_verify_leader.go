//go:build mutant_verify_leader

package cluster

import (
	"context"
	"fmt"
)

// confirm trusts raft, for which an answer to a message that was sent before counts as well.
func (n *Node) confirm(ctx context.Context, _ uint64) error {
	ctx, cancel := context.WithTimeout(ctx, n.config.Timing.Election)
	defer cancel()
	verified := make(chan error, 1)
	n.workers.Go(func() { verified <- n.raft.VerifyLeader().Error() })
	select {
	case err := <-verified:
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
		}
		return nil
	case <-ctx.Done():
		return ErrUnconfirmed
	}
}
