package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// Answer is what a member says of itself.
type Answer struct {
	Term uint64 // raft's current term, read after the question arrived
	Wall int64  // its wall clock, milliseconds since the Unix epoch
}

// Peers asks other members. Ask returns an answer that was given after the call, or an error. It is safe for concurrent use.
type Peers interface {
	Ask(ctx context.Context, member raft.Server) (Answer, error)
}

// ErrUnreachable says that a member did not answer.
var ErrUnreachable = errors.New("member unreachable")

// Network connects the members of one process: raft's in-memory transport, and questions by a function call.
type Network struct {
	mu      sync.Mutex
	members map[raft.ServerID]*Node
	wires   []*raft.InmemTransport
}

// NewNetwork returns a network without members.
func NewNetwork() *Network { return &Network{members: make(map[raft.ServerID]*Node)} }

// Transport returns the raft transport of a member, connected with all others of the network. Its address is its id.
func (n *Network) Transport(id raft.ServerID, timing Timing) raft.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, wire := raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), timing.Election)
	for _, other := range n.wires {
		other.Connect(wire.LocalAddr(), wire)
		wire.Connect(other.LocalAddr(), other)
	}
	n.wires = append(n.wires, wire)
	return &networkTransport{InmemTransport: wire, network: n}
}

// networkTransport leaves the network when it is closed, so that nobody waits for its answers. It embeds the transport itself,
// not the interface, and so keeps its other methods, without which raft would silently do without pre-votes.
type networkTransport struct {
	*raft.InmemTransport
	network *Network
}

// Close implements raft.WithClose.
func (t *networkTransport) Close() error {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	for _, other := range t.network.wires {
		other.Disconnect(t.LocalAddr())
	}
	t.network.wires = slices.DeleteFunc(t.network.wires, func(w *raft.InmemTransport) bool { return w == t.InmemTransport })
	return t.InmemTransport.Close()
}

var (
	_ raft.WithPreVote = (*networkTransport)(nil)
	_ raft.WithClose   = (*networkTransport)(nil)
)

// Attach makes a member answer questions.
func (n *Network) Attach(node *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members[node.ID()] = node
}

// Ask implements Peers.
func (n *Network) Ask(_ context.Context, member raft.Server) (Answer, error) {
	n.mu.Lock()
	node := n.members[member.ID]
	n.mu.Unlock()
	if node == nil {
		return Answer{}, fmt.Errorf("%w: %s", ErrUnreachable, member.ID)
	}
	return node.Answer(), nil
}
