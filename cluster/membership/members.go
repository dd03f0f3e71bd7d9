package membership

import (
	"context"
	"slices"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// Member is a member as operators see it.
type Member struct {
	Node    string             `json:"node"`
	ID      raft.ServerID      `json:"id"`
	Address raft.ServerAddress `json:"address"`
	// leader, follower, candidate, joining (its node is not open yet) or unreachable
	State       string `json:"state"`
	Voter       bool   `json:"voter"`
	CommitIndex uint64 `json:"commitIndex"`
	// entries that it lacks; for an unreachable member, the index from which ListAsKnown counts
	TrailsLeaderBy uint64 `json:"trailsLeaderBy"`
}

// List returns the members with what they say of themselves. The error is peer.ErrNotLeader if no
// majority confirms that this node leads.
func (m *Membership) List(ctx context.Context) ([]Member, error) {
	if err := m.env.Confirm(ctx); err != nil {
		return nil, err
	}
	return m.ListAsKnown(ctx), nil
}

// ListAsKnown returns the members in this node's configuration, with what they say of themselves
// now. It needs no leader. A leader counts TrailsLeaderBy from its own log, any other node from the
// longest log among the members that answered.
func (m *Membership) ListAsKnown(ctx context.Context) []Member {
	// before the poll, which lasts as long as its slowest member: a leader's log grows meanwhile
	own := m.env.OwnStatus()
	described := m.env.Statuses.Poll(ctx, peer.PollInterval)
	described[m.env.Self.ID] = peer.Answer{Status: own}
	end := own.LastIndex // index of the last entry in the log with which all others are compared
	if own.State != "leader" {
		for id := range described {
			end = max(end, described[id].LastIndex)
		}
	}
	members := []Member{}
	for _, server := range m.env.Servers() {
		member := Member{
			Node: peer.NodeName(server.ID), ID: server.ID, Address: server.Address,
			State: "unreachable",
			Voter: server.Suffrage == raft.Voter, TrailsLeaderBy: end,
		}
		if d, ok := described[server.ID]; ok && d.State != "shutdown" {
			member.State, member.CommitIndex = d.State, d.Commit
			member.TrailsLeaderBy = end - min(end, d.LastIndex)
		}
		members = append(members, member)
	}
	slices.SortFunc(members, func(a, b Member) int { return peer.CompareNames(a.Node, b.Node) })
	return members
}
