package cluster

import (
	"context"
	"errors"
)

// Close stops the node. If this node leads and there is another voter, Close first transfers the leadership. The context bounds only the transfer; if it has
// ended, there is none. Then Close waits for the node's goroutines and for raft, and closes the transport and the stores. Later calls return the same error.
func (n *Node) Close(ctx context.Context) error {
	l := &n.lifecycle
	l.closeOnce.Do(func() {
		if ctx.Err() != nil {
			n.env.Log.Debug("stopping without a leadership transfer: the context has ended")
		} else if err := n.members.TransferIfLeading(ctx, ""); err != nil {
			n.env.Log.Warn("the leadership transfer failed: stopping without it", "error", err)
		}
		l.stop()
		l.wait() // before raft's shutdown: after it raft leaves the futures in its queue unanswered
		shutdown := n.self.raft.Shutdown()
		if aborter, ok := n.env.Transport.(interface{ Abort() }); ok {
			aborter.Abort() // raft's shutdown waits for its calls, and a call to a hung member does not return
		}
		l.closeErr = errors.Join(shutdown.Error(), n.env.close())
	})
	return l.closeErr
}
