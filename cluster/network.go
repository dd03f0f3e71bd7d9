package cluster

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// Network connects members that run in one process. Raft uses its in-memory transport, and the
// members call each other by function calls. It is safe for concurrent use.
type Network struct {
	mu         sync.Mutex
	http       map[raft.ServerID]*pipeListener
	members    map[raft.ServerID]*Node
	transports []*raft.InmemTransport
}

// NewNetwork returns a network without members.
func NewNetwork() *Network { return &Network{members: make(map[raft.ServerID]*Node)} }

// Transport returns the raft transport of a member, connected with all others of the network. Its
// address is its id.
func (n *Network) Transport(id raft.ServerID, timing Timing) raft.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, wire := raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), timing.Election)
	for _, other := range n.transports {
		other.Connect(wire.LocalAddr(), wire)
		wire.Connect(other.LocalAddr(), other)
	}
	n.transports = append(n.transports, wire)
	return &networkTransport{InmemTransport: wire, leave: n.leave}
}

// leave disconnects a member from all others.
func (n *Network) leave(gone *raft.InmemTransport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.members, raft.ServerID(gone.LocalAddr()))
	delete(n.http, raft.ServerID(gone.LocalAddr()))
	for _, other := range n.transports {
		other.Disconnect(gone.LocalAddr())
	}
	n.transports = slices.DeleteFunc(n.transports,
		func(w *raft.InmemTransport) bool { return w == gone })
}

// networkTransport leaves the network when it is closed, so that new calls to it fail at once. It
// embeds the transport itself, not the interface, because raftfix needs its RequestPreVote.
type networkTransport struct {
	*raft.InmemTransport
	leave func(*raft.InmemTransport)
}

// Close implements raft.WithClose.
func (t *networkTransport) Close() error {
	t.leave(t.InmemTransport)
	return t.InmemTransport.Close()
}

var (
	_ raft.WithPreVote = (*networkTransport)(nil)
	_ raft.WithClose   = (*networkTransport)(nil)
)

// HTTP returns the listener for HTTP requests that other members forward to a member.
func (n *Network) HTTP(id raft.ServerID) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.http == nil {
		n.http = make(map[raft.ServerID]*pipeListener)
	}
	listener := &pipeListener{next: make(chan net.Conn), done: make(chan struct{})}
	n.http[id] = listener
	return listener
}

// DialHTTP opens a stream for HTTP to a member.
func (n *Network) DialHTTP(ctx context.Context, member raft.Server) (net.Conn, error) {
	n.mu.Lock()
	listener := n.http[member.ID]
	n.mu.Unlock()
	if listener == nil {
		return nil, fmt.Errorf("%w: %s", peer.ErrUnreachable, member.ID)
	}
	near, far := net.Pipe()
	select {
	case listener.next <- far:
		return near, nil
	case <-listener.done:
	case <-ctx.Done():
	}
	return nil, fmt.Errorf("%w: %s", peer.ErrUnreachable, member.ID)
}

// pipeListener is a listener for connections within the process.
type pipeListener struct {
	next chan net.Conn
	done chan struct{}
	once sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.next:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddress{} }

type pipeAddress struct{}

func (pipeAddress) Network() string { return "pipe" }
func (pipeAddress) String() string  { return "pipe" }

// Attach makes a member answer calls.
func (n *Network) Attach(node *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members[node.ID()] = node
}

// Call implements peer.Client. If the member has no id, its address is its id.
func (n *Network) Call(ctx context.Context, member raft.Server, method peer.Method,
	request []byte,
) ([]byte, error) {
	id := member.ID
	if id == "" {
		id = raft.ServerID(member.Address)
	}
	n.mu.Lock()
	node := n.members[id]
	n.mu.Unlock()
	if node == nil {
		return nil, fmt.Errorf("%w: %s", peer.ErrUnreachable, id)
	}
	// An id that is not empty says that the caller is a member: Handle then checks no certificate,
	// and forwards nothing to the leader.
	return node.Handle(ctx, peer.Caller{
		ID:        "network",
		Certified: func(...string) bool { return true },
	}, method, request)
}
