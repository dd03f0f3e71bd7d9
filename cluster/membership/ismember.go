package membership

import (
	"context"
	"strconv"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// HandleIsMember answers whether a raft id is a member. While a change is not committed the leader
// answers true for every id. A follower forwards the question, once. The error wraps ErrNotLeader
// in three cases: no majority confirms that this leader leads; this node does not serve as the
// leader and knows no other leader; or it does not serve and the question was forwarded to it.
func (m *Membership) HandleIsMember(ctx context.Context, caller peer.Caller,
	id raft.ServerID,
) ([]byte, error) {
	if !m.env.Serving() {
		if caller.ID != "" {
			// only a member that forwards the question calls with its id
			return nil, peer.ErrNotLeader
		}
		return m.env.CallLeader(ctx, peer.MethodIsMember, []byte(id))
	}
	member, err := m.isMember(ctx, id)
	return strconv.AppendBool(nil, member), err
}

func (m *Membership) isMember(ctx context.Context, id raft.ServerID) (bool, error) {
	if err := m.env.Confirm(ctx); err != nil {
		return false, err
	}
	future := m.env.Raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return false, err
	}
	if future.Index() > m.env.Raft.CommitIndex() {
		return true, nil // a change is under way, and may fail
	}
	_, member := peer.Find(future.Configuration().Servers, id)
	return member, nil
}
