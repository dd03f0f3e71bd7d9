package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// streamLayer is what raft's transport dials and listens with.
type streamLayer struct {
	*admittedListener
	advertise string
	dial      func(ctx context.Context, id raft.ServerID, address string) (net.Conn, error)
	outbound  *conns[*raftConn]
	ctx       context.Context //nolint:containedctx // that of the Transport
}

// Dial implements raft.StreamLayer.
func (l streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	id, host := splitTarget(address)
	conn, err := l.dial(ctx, id, host)
	if err != nil {
		return nil, err
	}
	opened := &raftConn{Conn: conn, closed: l.outbound.remove, target: address}
	opened.lastActive.Store(time.Now().UnixNano())
	if err := l.outbound.add(opened); err != nil {
		_ = conn.Close() // nothing was sent on it
		return nil, err
	}
	return opened, nil
}

// raftConn is a connection that raft has dialled. The Transport keeps these, so that it can close
// them when the member is silent: raft itself would wait for its long deadline.
type raftConn struct {
	net.Conn
	closed func(*raftConn)
	target raft.ServerAddress
	// when something was last sent or received, in nanoseconds since the Unix epoch
	lastActive atomic.Int64
}

// Read implements net.Conn.
func (o *raftConn) Read(p []byte) (int, error) {
	n, err := o.Conn.Read(p)
	if n > 0 {
		o.lastActive.Store(time.Now().UnixNano())
	}
	return n, err
}

// Write implements net.Conn.
func (o *raftConn) Write(p []byte) (int, error) {
	n, err := o.Conn.Write(p)
	if n > 0 {
		o.lastActive.Store(time.Now().UnixNano())
	}
	return n, err
}

// silentTo reports whether the connection is one to the target on which nothing was sent or
// received for patience. One that sends a snapshot to a slow receiver is not silent.
func (o *raftConn) silentTo(target raft.ServerAddress, patience time.Duration) bool {
	return o.target == target && time.Since(time.Unix(0, o.lastActive.Load())) > patience
}

// Close implements net.Conn.
func (o *raftConn) Close() error {
	o.closed(o)
	return o.Conn.Close()
}

// Addr implements net.Listener. It returns the advertised address, because raft uses it as this
// member's own address.
func (l streamLayer) Addr() net.Addr { return advertised(l.advertise) }

type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

// raftTransport is raft's NetworkTransport with the target's raft id in every address. It embeds
// the type and not the interface raft.Transport, because raft makes no pre-votes with a transport
// that does not implement raft.WithPreVote.
type raftTransport struct {
	*raft.NetworkTransport
	abort func()
	close func() error
}

var (
	_ raft.WithPreVote = (*raftTransport)(nil)
	_ raft.WithClose   = (*raftTransport)(nil)
)

// maxPooled is how many idle connections to one member raft keeps.
const maxPooled = 2

// retryStale sends a request, and repeats it while it fails because a pooled connection has ended,
// as after a restart of the member. Each attempt uses up one pooled connection. The request may
// arrive twice, so it must be idempotent.
func retryStale(request func() error) (err error) {
	for range maxPooled + 1 {
		if err = request(); !isStaleConn(err) {
			return err
		}
	}
	return err
}

// isStaleConn reports whether an error may be that of a connection that had ended before it was
// used.
func isStaleConn(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// Abort is Transport.Abort: it closes the connections on which raft may be waiting.
func (r *raftTransport) Abort() { r.abort() }

// Close implements raft.WithClose.
func (r *raftTransport) Close() error {
	err := r.NetworkTransport.Close()
	r.CloseStreams()
	if closeErr := r.close(); err == nil {
		err = closeErr
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (r *raftTransport) AppendEntriesPipeline(id raft.ServerID,
	address raft.ServerAddress,
) (raft.AppendPipeline, error) {
	inner, err := r.NetworkTransport.AppendEntriesPipeline(id, joinTarget(id, address))
	if err != nil {
		return nil, err
	}
	return newPipeline(inner), nil
}

// AppendEntries implements raft.Transport.
func (r *raftTransport) AppendEntries(id raft.ServerID, address raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	return retryStale(func() error {
		return r.NetworkTransport.AppendEntries(id,
			joinTarget(id, address), args, resp)
	})
}

// RequestVote implements raft.Transport.
func (r *raftTransport) RequestVote(id raft.ServerID, address raft.ServerAddress,
	args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	return retryStale(func() error {
		return r.NetworkTransport.RequestVote(id,
			joinTarget(id, address), args, resp)
	})
}

// RequestPreVote implements raft.WithPreVote.
func (r *raftTransport) RequestPreVote(id raft.ServerID, address raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return retryStale(func() error {
		return r.NetworkTransport.RequestPreVote(id,
			joinTarget(id, address), args, resp)
	})
}

// InstallSnapshot implements raft.Transport.
func (r *raftTransport) InstallSnapshot(id raft.ServerID, address raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	return r.NetworkTransport.InstallSnapshot(id, joinTarget(id, address), args, resp, data)
}

// TimeoutNow implements raft.Transport.
func (r *raftTransport) TimeoutNow(id raft.ServerID, address raft.ServerAddress,
	args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	return r.NetworkTransport.TimeoutNow(id, joinTarget(id, address), args, resp)
}
