package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// Handle answers another member, or a node that wants to be one. It is safe for concurrent use.
func (n *Node) Handle(ctx context.Context, caller peer.Caller, method peer.Method, request []byte) ([]byte, error) {
	if caller.ID == "" && !method.Public() {
		return nil, fmt.Errorf("%w: method %d is for members", peer.ErrRefused, method)
	}
	switch method {
	case peer.MethodAsk:
		return peer.EncodeTerm(n.raft.CurrentTerm(), n.world.Clock.Wall()), nil
	case peer.MethodPeerStatus:
		return json.Marshal(n.ownStatus())
	case peer.MethodMember:
		if caller.ID != "" && !n.serving() {
			return nil, peer.ErrNotLeader // it was passed on once
		}
		member, err := n.isMember(ctx, raft.ServerID(request))
		return strconv.AppendBool(nil, member), err
	case peer.MethodJoin:
		return nil, n.members.HandleJoin(ctx, caller, request)
	case peer.MethodOffer:
		return nil, n.offerer.Handle(ctx, request)
	case peer.MethodHash:
		return n.handleHash(ctx, request)
	case peer.MethodBroadcast:
		n.observer.HandleBroadcast(request)
		return nil, nil
	case peer.MethodHeld:
		return n.handleHeld(request)
	default:
		return nil, fmt.Errorf("%w: method %d is unknown to this version", peer.ErrRefused, method)
	}
}

// Standing returns what this node knows of the id, and the address of a member. A node that hears of a leader knows the
// members well enough; one that does not may be behind, and must let itself be caught up.
func (n *Node) Standing(id raft.ServerID) (peer.Standing, raft.ServerAddress) {
	servers := n.servers()
	if server, known := peer.Find(servers, id); known {
		return peer.Known, server.Address
	}
	if _, member := peer.Find(servers, n.config.ID); n.knownLeader() == "" || !member {
		return peer.Possible, ""
	}
	return peer.Stranger, ""
}

// isMember tells by the word of the leader whether a raft id is a member. The error is ErrNotLeader when there is nobody to
// ask.
func (n *Node) isMember(ctx context.Context, id raft.ServerID) (bool, error) {
	if !n.serving() {
		body, err := n.leaderCall(ctx, peer.MethodMember, []byte(id))
		return string(body) == "true", err
	}
	if err := n.Confirm(ctx); err != nil {
		return false, err
	}
	future := n.raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return false, err
	}
	if future.Index() > n.raft.CommitIndex() {
		return true, nil // a change is under way: it may yet come to nothing
	}
	_, member := peer.Find(future.Configuration().Servers, id)
	return member, nil
}
