package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/raftlog"
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
	if err != nil {
		return nil, err
	}
	return l.transport.keepOutbound(conn, address)
}

// outbound is a connection that raft has dialled. They are known, so that they can be ended when the member is silent: raft
// itself would wait for its long deadline.
type outbound struct {
	net.Conn
	transport *Transport
	target    raft.ServerAddress
	moved     atomic.Int64 // when something was last sent or received, in nanoseconds since the Unix epoch
}

// Read implements net.Conn.
func (o *outbound) Read(p []byte) (int, error) {
	n, err := o.Conn.Read(p)
	if n > 0 {
		o.moved.Store(time.Now().UnixNano())
	}
	return n, err
}

// Write implements net.Conn.
func (o *outbound) Write(p []byte) (int, error) {
	n, err := o.Conn.Write(p)
	if n > 0 {
		o.moved.Store(time.Now().UnixNano())
	}
	return n, err
}

// silentTo reports whether nothing goes over the connection to a member: not even a snapshot, whose receiver may be slow.
func (o *outbound) silentTo(target raft.ServerAddress, patience time.Duration) bool {
	return o.target == target && time.Since(time.Unix(0, o.moved.Load())) > patience
}

// Close implements net.Conn.
func (o *outbound) Close() error {
	o.transport.mu.Lock()
	o.transport.outbound.Delete(o)
	o.transport.mu.Unlock()
	return o.Conn.Close()
}

func (t *Transport) keepOutbound(conn net.Conn, target raft.ServerAddress) (net.Conn, error) {
	kept := &outbound{Conn: conn, transport: t, target: target}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		_ = conn.Close() // nothing was sent on it
		return nil, net.ErrClosed
	}
	t.outbound.Add(kept)
	return kept, nil
}

// closeOutbound ends those of raft's connections that are chosen. Raft sees it at their next use.
func (t *Transport) closeOutbound(chosen func(*outbound) bool) {
	var ending []*outbound
	t.mu.Lock()
	for conn := range t.outbound.All() {
		if chosen(conn) {
			ending = append(ending, conn)
		}
	}
	t.mu.Unlock()
	for _, conn := range ending { // it may take a while to say goodbye
		_ = conn.SetDeadline(time.Unix(1, 0))
		_ = conn.Close() // whoever uses it sees the end
	}
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
		ioTimeout    = 10 * time.Second // of a message of up to some MiB
		timeoutScale = 8 << 20          // of a snapshot that much has as long
	)
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: streamLayer{t.raft, t}, MaxPool: maxPooled, Timeout: ioTimeout, Logger: raftlog.Logger(t.config.Log),
		MsgpackUseNewTimeFormat: true,
	})
	network.TimeoutScale = timeoutScale
	return &raftTransport{NetworkTransport: network, transport: t}
}

// maxPooled is how many idle connections to one member raft keeps.
const maxPooled = 2

// again repeats a request, which must be one that may arrive twice, while it fails because a pooled connection has ended
// meanwhile: that of a member that was restarted. Each attempt uses up one of them.
func again(request func() error) (err error) {
	for range maxPooled + 1 {
		if err = request(); !stale(err) {
			return err
		}
	}
	return err
}

// stale reports whether an error may be that of a connection that had ended before it was used.
func stale(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// Abort ends what raft may be waiting for.
func (r *raftTransport) Abort() { r.transport.Abort() }

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
	inner, err := r.NetworkTransport.AppendEntriesPipeline(id, target(id, address))
	if err != nil {
		return nil, err
	}
	return newPipeline(inner), nil
}

// AppendEntries implements raft.Transport.
func (r *raftTransport) AppendEntries(id raft.ServerID, address raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return again(func() error { return r.NetworkTransport.AppendEntries(id, target(id, address), args, resp) })
}

// RequestVote implements raft.Transport.
func (r *raftTransport) RequestVote(id raft.ServerID, address raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return again(func() error { return r.NetworkTransport.RequestVote(id, target(id, address), args, resp) })
}

// RequestPreVote implements raft.WithPreVote.
func (r *raftTransport) RequestPreVote(id raft.ServerID, address raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return again(func() error { return r.NetworkTransport.RequestPreVote(id, target(id, address), args, resp) })
}

// InstallSnapshot implements raft.Transport.
func (r *raftTransport) InstallSnapshot(id raft.ServerID, address raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return r.NetworkTransport.InstallSnapshot(id, target(id, address), args, resp, data)
}

// TimeoutNow implements raft.Transport.
func (r *raftTransport) TimeoutNow(id raft.ServerID, address raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return r.NetworkTransport.TimeoutNow(id, target(id, address), args, resp)
}
