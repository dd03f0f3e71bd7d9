package cluster

import (
	"context"

	"github.com/hashicorp/raft"
)

// What tests see of a Node beyond its methods.

func (n *Node) raftForTest() *raft.Raft { return n.self.raft }

// leadsForTest reports whether a leadership has begun and not ended.
func (n *Node) leadsForTest() bool { return n.commands.leadership.Load() != nil }

func (n *Node) transferForTest(ctx context.Context, to string) error {
	return n.members.TransferIfLeading(ctx, to)
}

func (n *Node) serversForTest() []raft.Server { return n.self.servers() }
