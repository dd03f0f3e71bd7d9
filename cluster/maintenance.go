package cluster

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

const (
	// maintenanceInterval is how often the leader looks after the cluster.
	maintenanceInterval = 200 * time.Millisecond
	// brokerPatience is how long a leader may be without its broker before it hands over.
	brokerPatience = 2 * time.Second
)

// maintain looks after the cluster while this node leads: it hands over when it alone has lost its broker, raises the version in
// force when every member was upgraded, and puts an entry behind a change of the members.
func (n *Node) maintain(ctx context.Context) error {
	ticker := time.NewTicker(maintenanceInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if n.observer.BrokerSilence() >= brokerPatience {
			n.transferWithoutBroker(ctx)
		}
		n.raiseVersion(ctx)
		n.followChange(ctx)
		n.members.MoveSelf(ctx)
	}
}

// raiseVersion puts the newest version into force that every member knows, while no member is being added.
func (n *Node) raiseVersion(ctx context.Context) {
	if !n.serving() || n.peers.AgreedVersion(fsm.Version, n.replica.Status().Version) <= n.replica.Status().Version || !n.members.TryLock() {
		return
	}
	defer n.members.Unlock()
	if agreed := n.peers.AgreedVersion(fsm.Version, n.replica.Status().Version); agreed > n.replica.Status().Version {
		if _, err := n.Execute(ctx, fsm.Command{Kind: fsm.KindAdvance, Version: agreed}); err == nil {
			n.world.Log.Info("a newer version of the log is in force: every member knows it", "log_version", agreed)
		}
	}
}

// transferWithoutBroker hands leadership to a voter that has its broker session. When there is none, this node stays: it is as good as any.
func (n *Node) transferWithoutBroker(ctx context.Context) {
	var best raft.Server
	var lastIndex uint64
	for id, description := range n.peers.Poll(ctx, maintenanceInterval) {
		server, member := peer.Find(n.servers(), id)
		if member && server.Suffrage == raft.Voter && description.BrokerUp && description.LastIndex >= lastIndex &&
			!n.members.TransferFailed(n.raft.CurrentTerm(), id) {
			best, lastIndex = server, description.LastIndex
		}
	}
	if best.ID == "" {
		return
	}
	n.world.Log.Warn("handing over: this node has lost the broker, another has not", "to", best.ID)
	if err := n.members.TransferIfLeading(ctx, string(best.ID)); err != nil {
		n.world.Log.Warn("the hand-over failed", "error", err)
	}
}

// followChange puts an entry behind a change of the members that nothing has followed yet: raft refuses to take a snapshot
// before.
func (n *Node) followChange(ctx context.Context) {
	future := n.raft.GetConfiguration()
	if !n.serving() || future.Error() != nil {
		return
	}
	if index := future.Index(); index <= n.raft.CommitIndex() && index > n.replica.Status().Index && index == n.raft.LastIndex() {
		_, _ = n.Execute(ctx, fsm.Command{Kind: fsm.KindAdvance}) // comes again if it fails
	}
}
