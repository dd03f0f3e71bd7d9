package transport

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster"
)

// streams is a net.Listener of connections that were admitted.
type streams struct {
	address net.Addr
	next    chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func newStreams(address net.Addr) *streams {
	return &streams{address: address, next: make(chan net.Conn), done: make(chan struct{})}
}

func (s *streams) push(conn net.Conn) {
	select {
	case s.next <- conn:
	case <-s.done:
		_ = conn.Close() // nobody was served on it
	}
}

func (s *streams) stop() { s.once.Do(func() { close(s.done) }) }

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case conn := <-s.next:
		return conn, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The port stays open: it is the Transport's.
func (s *streams) Close() error {
	s.stop()
	return nil
}

// Addr implements net.Listener.
func (s *streams) Addr() net.Addr { return s.address }

// streamLayer is what raft's transport dials and listens with.
type streamLayer struct {
	*streams
	transport *Transport
}

// Dial implements raft.StreamLayer.
func (l streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.transport.ctx, timeout)
	defer cancel()
	id, host := split(address)
	conn, _, err := l.transport.dial(ctx, kindRaft, id, host)
	return conn, err
}

// Addr implements net.Listener: raft takes it for this member's own address.
func (l streamLayer) Addr() net.Addr { return advertised(l.transport.config.Advertise) }

type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

// raftTransport is raft's own, with the id that is meant in every address. It embeds the type, not the interface, and so keeps
// the methods without which raft would silently do without pre-votes.
type raftTransport struct {
	*raft.NetworkTransport
	transport *Transport
}

var (
	_ raft.WithPreVote = (*raftTransport)(nil)
	_ raft.WithClose   = (*raftTransport)(nil)
)

// Raft returns the transport for raft, which closes the whole Transport with it. It is called once.
func (t *Transport) Raft() raft.Transport {
	const (
		pooled    = 3
		ioTimeout = 10 * time.Second // of a message of up to some MiB
	)
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: streamLayer{t.raft, t}, MaxPool: pooled, Timeout: ioTimeout, Logger: cluster.RaftLogger(t.config.Log),
		MsgpackUseNewTimeFormat: true,
	})
	return &raftTransport{NetworkTransport: network, transport: t}
}

// Close implements raft.WithClose.
func (r *raftTransport) Close() error {
	err := r.NetworkTransport.Close()
	r.CloseStreams()
	if closeErr := r.transport.Close(); err == nil {
		err = closeErr
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (r *raftTransport) AppendEntriesPipeline(id raft.ServerID, address raft.ServerAddress) (raft.AppendPipeline, error) {
	return r.NetworkTransport.AppendEntriesPipeline(id, target(id, address))
}

// AppendEntries implements raft.Transport.
func (r *raftTransport) AppendEntries(id raft.ServerID, address raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return r.NetworkTransport.AppendEntries(id, target(id, address), args, resp)
}

// RequestVote implements raft.Transport.
func (r *raftTransport) RequestVote(id raft.ServerID, address raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return r.NetworkTransport.RequestVote(id, target(id, address), args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (r *raftTransport) RequestPreVote(id raft.ServerID, address raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return r.NetworkTransport.RequestPreVote(id, target(id, address), args, resp)
}

// InstallSnapshot implements raft.Transport.
func (r *raftTransport) InstallSnapshot(id raft.ServerID, address raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return r.NetworkTransport.InstallSnapshot(id, target(id, address), args, resp, data)
}

// TimeoutNow implements raft.Transport.
func (r *raftTransport) TimeoutNow(id raft.ServerID, address raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return r.NetworkTransport.TimeoutNow(id, target(id, address), args, resp)
}
