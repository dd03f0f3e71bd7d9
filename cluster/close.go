package cluster

import (
	"context"
	"errors"
)

// Close hands over the leadership, if there is anybody to take it, and stops: raft, the transport, the stores, in this order.
// The context bounds the hand-over only.
func (n *Node) Close(ctx context.Context) error {
	l := &n.lifecycle
	l.closing.Do(func() {
		if ctx.Err() != nil {
			n.env.Log.Debug("stopping at once")
		} else if err := n.members.TransferIfLeading(ctx, ""); err != nil {
			n.env.Log.Warn("stopping without a hand-over", "error", err)
		}
		l.stop()
		l.workers.Wait() // while raft still answers: it never answers what is in its queue when it ends
		stopping := n.self.raft.Shutdown()
		if aborter, ok := n.env.Transport.(interface{ Abort() }); ok {
			aborter.Abort() // raft waits for its calls to other members, which may hang
		}
		l.closed = errors.Join(stopping.Error(), n.env.close())
	})
	return l.closed
}
