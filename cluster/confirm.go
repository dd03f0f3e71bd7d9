package cluster

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// Confirm returns nil when this node was the leader of its term at some moment after the call.
func (n *Node) Confirm(ctx context.Context) error {
	l := n.leadership.Load()
	if l == nil {
		return peer.ErrNotLeader
	}
	return n.confirm(ctx, l.term)
}

// confirm asks the voters whether the term is still the newest that they know. It returns nil when a majority, this node
// included, answered so to a question that was sent after the call: whoever leads in a later term was voted for by a
// majority, a vote raises the term before it is given, and majorities intersect.
func (n *Node) confirm(ctx context.Context, term uint64) error {
	future := n.raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return fmt.Errorf("%w: %w", peer.ErrUnconfirmed, err)
	}
	ctx, cancel := context.WithTimeout(ctx, n.config.Timing.Election)
	defer cancel()
	var others []raft.Server
	voters, agreed := 0, 0
	for _, server := range future.Configuration().Servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		if server.ID == n.config.ID {
			if n.raft.CurrentTerm() == term {
				agreed++
			}
			continue
		}
		others = append(others, server)
	}
	if agreed == 0 {
		return peer.ErrUnconfirmed
	}
	answers := make(chan bool, len(others))
	for _, server := range others {
		n.workers.Go(func() { // ends with the context at the latest, so nobody waits for it here
			newest, err := peer.AskTerm(ctx, n.world.Peers, server)
			answers <- err == nil && newest <= term
		})
	}
	for range others {
		if agreed > voters/2 {
			return nil
		}
		select {
		case yes := <-answers:
			if yes {
				agreed++
			}
		case <-ctx.Done():
			return peer.ErrUnconfirmed
		}
	}
	if agreed > voters/2 {
		return nil
	}
	return peer.ErrUnconfirmed
}
