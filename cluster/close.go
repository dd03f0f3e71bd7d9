package cluster

import (
	"context"
	"errors"
)

// Close stops the node. If this node leads and there is another voter, Close first transfers the
// leadership. The context bounds only the transfer; if it has ended, there is none. Then Close
// waits for the node's goroutines and for raft, and closes the transport and the stores. Later
// calls return the same error.
func (n *Node) Close(ctx context.Context) error {
	l := &n.lifecycle
	l.closeOnce.Do(func() {
		if ctx.Err() != nil {
			n.env.Log.Debug("stopping without a leadership transfer: the context has ended")
		} else if err := n.members.TransferIfLeading(ctx, ""); err != nil {
			n.env.Log.Warn("the leadership transfer did not complete: stopping all the same",
				"error", err)
		}
		l.stop()
		// must come before Shutdown: after it, raft answers no queued future any more, and the
		// goroutines would wait for ever
		l.wait()
		shutdownFuture := n.self.raft.Shutdown()
		if aborter, ok := n.env.Transport.(interface{ Abort() }); ok {
			// shutdownFuture waits for raft's own calls, and a call to a hung member returns only
			// when its connection is closed
			aborter.Abort()
		}
		l.closeErr = errors.Join(shutdownFuture.Error(), n.env.close())
	})
	return l.closeErr
}
