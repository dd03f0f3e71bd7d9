//go:build mutant_leader_state

package cluster

import (
	"context"

	"github.com/hashicorp/raft"
)

// confirm asks nobody.
func (n *Node) confirm(context.Context, uint64) error {
	if n.raft.State() != raft.Leader {
		return ErrUnconfirmed
	}
	return nil
}
