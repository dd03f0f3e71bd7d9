package cluster

import (
	"context"
	"errors"
)

// Close stops the node. If this node leads and there is another voter, it first transfers the leadership; the context bounds only that. Then it stops
// the node's goroutines, raft, the transport and the stores, in this order.
func (n *Node) Close(ctx context.Context) error {
	l := &n.lifecycle
	l.closing.Do(func() {
		if ctx.Err() != nil {
			n.env.Log.Debug("stopping at once")
		} else if err := n.members.TransferIfLeading(ctx, ""); err != nil {
			n.env.Log.Warn("stopping without a leadership transfer", "error", err)
		}
		l.stop()
		l.wait() // before raft's shutdown, after which raft does not answer the futures in its queue
		stopping := n.self.raft.Shutdown()
		if aborter, ok := n.env.Transport.(interface{ Abort() }); ok {
			aborter.Abort() // raft's shutdown waits for its calls to other members, which may hang
		}
		l.closed = errors.Join(stopping.Error(), n.env.close())
	})
	return l.closed
}
