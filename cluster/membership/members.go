package membership

import (
	"context"
	"slices"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// Member is a member as operators see it.
type Member struct {
	Node           string             `json:"node"`
	ID             raft.ServerID      `json:"id"`
	Address        raft.ServerAddress `json:"address"`
	State          string             `json:"state"` // leader, follower, candidate, joining or unreachable
	Voter          bool               `json:"voter"`
	CommitIndex    uint64             `json:"commitIndex"`
	TrailsLeaderBy uint64             `json:"trailsLeaderBy"` // entries
}

// List returns the members with what they say of themselves. The error is peer.ErrNotLeader on any other node than the leader.
func (m *Membership) List(ctx context.Context) ([]Member, error) {
	if err := m.env.Confirm(ctx); err != nil {
		return nil, err
	}
	return m.ListAsKnown(ctx), nil
}

// ListAsKnown returns the members that this node knows, with what they say of themselves now: for when there is no leader
// whose word would count. How far they trail is then counted from the longest log among those that answered.
func (m *Membership) ListAsKnown(ctx context.Context) []Member {
	described := m.env.Statuses.Poll(ctx, peer.PollInterval)
	described[m.env.Self.ID] = peer.Answer{Status: m.env.OwnStatus()}
	longest := uint64(0)
	for id := range described {
		longest = max(longest, described[id].LastIndex)
	}
	members := []Member{}
	for _, server := range m.env.Servers() {
		member := Member{
			Node: peer.NodeName(server.ID), ID: server.ID, Address: server.Address, State: "unreachable",
			Voter: server.Suffrage == raft.Voter, TrailsLeaderBy: longest,
		}
		if d, ok := described[server.ID]; ok && d.State != "shutdown" {
			member.State, member.CommitIndex = d.State, d.Commit
			member.TrailsLeaderBy = longest - d.LastIndex
		}
		members = append(members, member)
	}
	slices.SortFunc(members, func(a, b Member) int { return peer.CompareNames(a.Node, b.Node) })
	return members
}
