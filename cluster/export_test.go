package cluster

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// What tests see of a Node beyond its methods.

func (n *Node) raftForTest() *raft.Raft { return n.self.raft }

// leadsForTest reports whether a leadership has begun and not ended.
func (n *Node) leadsForTest() bool { return n.commands.leadership.Load() != nil }

func (n *Node) transferForTest(ctx context.Context, to string) error {
	return n.members.TransferIfLeading(ctx, to)
}

func (n *Node) confirmForTest(ctx context.Context, term uint64) error {
	return n.commands.confirmTerm(ctx, term)
}

func (n *Node) serversForTest() []raft.Server { return n.self.servers() }

// pollForTest asks all members for their status.
func (n *Node) pollForTest(ctx context.Context) map[raft.ServerID]peer.Answer {
	return n.memberWatch.peers.Poll(ctx, time.Second)
}
