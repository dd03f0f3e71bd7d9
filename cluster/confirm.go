package cluster

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// confirmer asks the other voters whether they know a newer term than the one in which this node
// leads. It is safe for concurrent use.
type confirmer struct {
	id      raft.ServerID        // of this member
	term    func() uint64        // of this member's raft
	servers func() []raft.Server // all members
	client  peer.Client
	timeout time.Duration
	// starts a goroutine that the node waits for; false while the node closes
	start func(func()) bool
}

// confirm asks the voters whether the term is the newest that they know. It returns nil if a
// majority, this node included, says yes to a question that was sent after the call began. Then no
// leader of a later term was elected before the call: it would have needed the votes of a majority,
// a vote raises the voter's term first, and two majorities share a voter.
func (c *confirmer) confirm(ctx context.Context, term uint64) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var others []raft.Server
	voters, agreed := 0, 0
	for _, server := range c.servers() {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		if server.ID == c.id {
			if c.term() == term {
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
		started := c.start(func() {
			// it ends with the context at the latest; the node waits for it when it closes
			newest, err := peer.AskTerm(ctx, c.client, server)
			answers <- err == nil && newest <= term
		})
		if !started {
			return peer.ErrUnconfirmed
		}
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
