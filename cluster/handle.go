package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// Caller is who calls a member.
type Caller struct {
	// ID is the caller's where it talks as a member; empty for one that need not be one.
	ID raft.ServerID
	// Certified reports whether the caller's certificate has one of the names.
	Certified func(names ...string) bool
}

// Handle answers another member, or a node that wants to be one. It is safe for concurrent use.
func (n *Node) Handle(ctx context.Context, caller Caller, method Method, request []byte) ([]byte, error) {
	if caller.ID == "" && !method.Public() {
		return nil, fmt.Errorf("%w: method %d is for members", ErrRefused, method)
	}
	switch method {
	case MethodAsk:
		return n.answer().encode(), nil
	case MethodPeerStatus:
		return json.Marshal(n.ownStatus())
	case MethodMember:
		if caller.ID != "" && n.leadership.Load() == nil {
			return nil, ErrNotLeader // it was passed on once
		}
		member, err := n.isMember(ctx, raft.ServerID(request))
		return strconv.AppendBool(nil, member), err
	case MethodJoin:
		return nil, n.handleJoin(ctx, caller, request)
	case MethodOffer:
		return nil, n.handleOffer(ctx, request)
	case MethodHash:
		return n.handleHash(ctx, request)
	case MethodBroadcast:
		n.observer.HandleBroadcast(request)
		return nil, nil
	case MethodHeld:
		return n.handleHeld(request)
	default:
		return nil, fmt.Errorf("%w: method %d is unknown to this version", ErrRefused, method)
	}
}

// Standing is what a node knows of another that wants to talk to it as a member.
type Standing uint8

// The standings.
const (
	Stranger Standing = iota // it is no member
	Possible                 // it may be a member that this node has not heard of yet
	Known                    // it is a member
)

// Standing returns what this node knows of the id, and the address of a member. A node that hears of a leader knows the
// members well enough; one that does not may be behind, and must let itself be caught up.
func (n *Node) Standing(id raft.ServerID) (Standing, raft.ServerAddress) {
	servers := n.servers()
	if server, known := find(servers, id); known {
		return Known, server.Address
	}
	_, leader := n.raft.LeaderWithID()
	if _, member := find(servers, n.config.ID); leader == "" || !member {
		return Possible, ""
	}
	return Stranger, ""
}

// servers returns the latest configuration that this member knows.
func (n *Node) servers() []raft.Server {
	future := n.raft.GetConfiguration()
	if future.Error() != nil {
		return nil // raft v1.7.3 never fails here
	}
	return future.Configuration().Servers
}

func find(servers []raft.Server, id raft.ServerID) (raft.Server, bool) {
	for _, server := range servers {
		if server.ID == id {
			return server, true
		}
	}
	return raft.Server{}, false
}

// answer is what is asked thousands of times a second.
type answer struct {
	term uint64 // raft's current term, read after the question arrived
	wall int64  // the wall clock, milliseconds since the Unix epoch
}

func (n *Node) answer() answer {
	return answer{term: n.raft.CurrentTerm(), wall: n.world.Clock.Wall()}
}

func (a answer) encode() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, a.term), uint64(a.wall))
}

var errAnswer = errors.New("an answer that cannot be read")

// ask returns what the member answers to a question that was sent after the call.
func (n *Node) ask(ctx context.Context, member raft.Server) (answer, error) {
	body, err := n.world.Peers.Call(ctx, member, MethodAsk, nil)
	if err != nil {
		return answer{}, err
	}
	if len(body) < 16 {
		return answer{}, errAnswer
	}
	return answer{term: binary.BigEndian.Uint64(body), wall: int64(binary.BigEndian.Uint64(body[8:]))}, nil
}

// leaderCall calls the leader that this member knows.
func (n *Node) leaderCall(ctx context.Context, method Method, request []byte) ([]byte, error) {
	_, id := n.raft.LeaderWithID()
	leader, known := find(n.servers(), id)
	if id == n.config.ID || !known {
		return nil, ErrNotLeader
	}
	return n.world.Peers.Call(ctx, leader, method, request)
}

// isMember tells by the word of the leader whether a raft id is a member. The error is ErrNotLeader when there is nobody to
// ask.
func (n *Node) isMember(ctx context.Context, id raft.ServerID) (bool, error) {
	if n.leadership.Load() == nil {
		body, err := n.leaderCall(ctx, MethodMember, []byte(id))
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
	_, member := find(future.Configuration().Servers, id)
	return member, nil
}

// handleOffer proposes another member's settings.
func (n *Node) handleOffer(ctx context.Context, request []byte) error {
	entry, err := fsm.DecodeEntry(request)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if len(entry.Commands) != 1 || entry.Commands[0].Kind != fsm.KindConfigure {
		return fmt.Errorf("%w: this is no offer of settings", ErrRefused)
	}
	_, err = n.Execute(ctx, entry.Commands[0])
	return err
}
