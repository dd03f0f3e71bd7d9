package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// Handle answers a call. A caller without a raft id may use the public methods only. It is safe for
// concurrent use.
func (n *Node) Handle(ctx context.Context, caller peer.Caller, method peer.Method,
	request []byte,
) ([]byte, error) {
	if caller.ID == "" && !method.Public() {
		return nil, fmt.Errorf("%w: method %d needs a caller with a raft id", peer.ErrRefused,
			method)
	}
	switch method {
	case peer.MethodTerm:
		return peer.EncodeTerm(n.self.raft.CurrentTerm(), n.self.wall()), nil
	case peer.MethodPeerStatus:
		return json.Marshal(n.self.status())
	case peer.MethodIsMember:
		return n.members.HandleIsMember(ctx, caller, raft.ServerID(request))
	case peer.MethodJoin:
		return nil, n.members.HandleJoin(ctx, caller, request)
	case peer.MethodOffer:
		return nil, n.offerer.Handle(ctx, request)
	case peer.MethodHash:
		return n.verifier.handleHash(ctx, request)
	default:
		return nil, fmt.Errorf("%w: method %d is unknown to this version", peer.ErrRefused, method)
	}
}

// Standing returns whether a raft id is a member, as far as this node knows. It is Possible if the
// id may be a member that this node has not heard of. The address is that of a Known member, empty
// for others.
func (n *Node) Standing(id raft.ServerID) (peer.Standing, raft.ServerAddress) {
	return n.self.standing(id)
}
