package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
	"holdfast/internal/backoff"
	"holdfast/internal/tlsconfig"
)

// Config says who this member is and how it is reached. All fields but TLS, Network and Patience
// are required.
type Config struct {
	Cluster   string
	ID        raft.ServerID
	Listen    string // host:port
	Advertise string // host:port under which the other members reach this one
	// TLS are the certificates; nil is plain TCP.
	TLS *tlsconfig.Mutual
	// Network carries the connections; nil is TCP.
	Network Network
	// Timeout bounds a connection attempt with its handshake.
	Timeout time.Duration
	// Patience is how long a member may be silent while calls to it wait. When a call's deadline
	// passes after a longer silence, the silent connections to the member are closed. A value below
	// 0.9 s counts as 0.9 s.
	Patience time.Duration
	Log      *slog.Logger
}

// Network opens ports and connections. It must be safe for concurrent use.
type Network interface {
	Listen(address string) (net.Listener, error)
	Dial(ctx context.Context, address string) (net.Conn, error)
}

// tcp is the network of real machines.
type tcp struct{}

// Listen implements Network.
func (tcp) Listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

// Dial implements Network.
func (tcp) Dial(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// Handler answers other members. It must be safe for concurrent use.
type Handler interface {
	// Handle answers a call.
	Handle(ctx context.Context, caller peer.Caller, method peer.Method, request []byte) ([]byte,
		error)
	// Standing returns whether an id is that of a member, as far as this node knows, and the
	// member's address.
	Standing(id raft.ServerID) (peer.Standing, raft.ServerAddress)
}

// Transport is a listener and the connections to other members. Its methods are safe for concurrent
// use.
type Transport struct {
	config   Config
	dialer   dialer
	faults   *certFaults
	listener net.Listener
	handler  atomic.Pointer[handlerBox]
	raft     *admittedListener // accepted connections of raft
	http     *admittedListener // accepted connections of forwarded HTTP
	calls    callClients

	stop    context.CancelFunc
	ctx     context.Context //nolint:containedctx // canceled by stop; ends the transport's own goroutines
	workers sync.WaitGroup
	closing sync.Once

	// semaphore: has an element for each connection whose handshake is under way
	admitting chan struct{}
	stallTime time.Duration // see requestConn.stall
	accepted  conns[*acceptedConn]
	outbound  conns[*raftConn] // connections that raft has dialled
}

// maxAdmitting bounds the handshakes that are under way at once.
const maxAdmitting = 256

type handlerBox struct{ Handler }

// Listen opens the port. No connection is admitted before Serve is called.
func Listen(config Config) (*Transport, error) {
	if config.Network == nil {
		config.Network = tcp{}
	}
	listener, err := config.Network.Listen(config.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for members: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Transport{
		config: config, listener: listener, ctx: ctx, stop: stop,
		admitting: make(chan struct{}, maxAdmitting), stallTime: stallTime,
		raft: newAdmittedListener(listener.Addr()), http: newAdmittedListener(listener.Addr()),
	}
	t.faults = newCertFaults(config.Log)
	t.dialer = dialer{&t.config, t.faults}
	patience := max(config.Patience, minPatience)
	t.calls.env = callEnvironment{
		dial: func(id raft.ServerID, address string) (net.Conn, error) {
			conn, _, err := t.dialer.dial(t.ctx, kindCall, id, address)
			return conn, err
		},
		start:    t.workers.Go,
		patience: patience,
		onSilent: func(member raft.ServerAddress) {
			t.outbound.closeIf(func(o *raftConn) bool { return o.silentTo(member, patience) })
		},
	}
	return t, nil
}

// Address returns where the transport listens.
func (t *Transport) Address() string { return t.listener.Addr().String() }

// Notes returns which members refuse this one's certificate, and whose this one refuses, since half
// a minute at most.
func (t *Transport) Notes() []string { return t.faults.notes() }

// Serve starts to admit connections. The handler answers the calls that arrive on them. A later
// Serve replaces the handler.
func (t *Transport) Serve(handler Handler) {
	if t.handler.Swap(&handlerBox{handler}) == nil {
		t.workers.Go(t.accept)
	}
}

// Close ends all connections but those of DialHTTP, and waits for the transport's goroutines.
func (t *Transport) Close() error {
	var err error
	t.closing.Do(func() {
		t.stop()
		err = t.listener.Close()
		t.raft.stop()
		t.http.stop()
		t.calls.close()
		t.Abort()
		t.workers.Wait()
	})
	return err
}

func (t *Transport) accept() {
	const pause = 50 * time.Millisecond
	for t.ctx.Err() == nil {
		conn, err := t.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, for instance
			t.config.Log.Warn("a member's connection could not be accepted", "error", err)
			backoff.Pause(t.ctx, pause)
			continue
		}
		select {
		case t.admitting <- struct{}{}:
		case <-t.ctx.Done():
			_ = conn.Close() // no request was read from it
			return
		}
		t.workers.Go(func() { t.serve(conn) })
	}
}

// Abort closes the connections that raft has dialled and all accepted ones. After that no
// connection is accepted, and none is dialled for raft or for calls. So raft's shutdown does not
// wait for a member that hangs.
func (t *Transport) Abort() {
	t.stop()
	t.outbound.closeAll()
	t.accepted.closeAll()
}

// serve admits one connection, and serves its calls or passes it to the listener of its kind.
func (t *Transport) serve(accepted net.Conn) {
	conn := &acceptedConn{Conn: t.config.TLS.Server(accepted), closed: t.accepted.remove}
	if t.accepted.add(conn) != nil {
		_ = conn.Close() // no request was served on it
		<-t.admitting
		return
	}
	_ = conn.SetDeadline(time.Now().Add(t.config.Timeout)) // an error shows at the next use
	theirs, err := admitter{&t.config, t.standing}.admit(conn)
	<-t.admitting
	if err != nil {
		t.config.Log.Debug("a member's connection was not admitted", "remote",
			accepted.RemoteAddr(), "error", err)
		t.faults.refused(accepted.RemoteAddr(), err)
		_ = conn.Close() // no request was served on it
		return
	}
	_ = conn.SetDeadline(time.Time{}) // an error shows at the next use
	tune(accepted, theirs.Kind)
	switch theirs.Kind {
	case kindRaft:
		t.raft.push(&requestConn{Conn: conn, stall: t.stallTime})
	case kindHTTP:
		t.http.push(conn)
	case kindCall:
		caller := peer.Caller{
			ID: theirs.From,
			Certified: func(names ...string) bool {
				return t.config.TLS.PeerHasName(conn,
					names...)
			},
		}
		if theirs.To == "" { // admit did not verify From
			caller.ID = ""
		}
		t.serveCalls(conn, caller)
	default:
		_ = conn.Close() // of a kind that a newer version may know
	}
}

// standing asks the current handler. Serve may replace the handler while a handshake is under way.
func (t *Transport) standing(id raft.ServerID) (peer.Standing, raft.ServerAddress) {
	return t.handler.Load().Standing(id)
}

// acceptedConn is an accepted connection. It is in Transport.accepted until it is closed, so Abort
// can close it, whichever goroutine uses it.
type acceptedConn struct {
	net.Conn
	closed func(*acceptedConn)
}

// Close implements net.Conn.
func (c *acceptedConn) Close() error {
	c.closed(c)
	return c.Conn.Close()
}

// Secured returns the TLS connection, which has the certificates of the other side. Without TLS it
// returns the plain connection.
func (c *acceptedConn) Secured() net.Conn { return c.Conn }

// DialHTTP opens a stream for HTTP to a member. The caller closes it: Close of the Transport does
// not.
func (t *Transport) DialHTTP(ctx context.Context, member raft.Server) (net.Conn, error) {
	conn, _, err := t.dialer.dial(ctx, kindHTTP, member.ID, string(member.Address))
	return conn, err
}

// HTTP returns the listener for HTTP that other members forward.
func (t *Transport) HTTP() net.Listener { return t.http }

// Raft returns raft's transport. Closing that closes the whole Transport. It is called once.
func (t *Transport) Raft() raft.Transport {
	const (
		ioTimeout = 10 * time.Second // for one message, of up to some MiB
		// bytes: a snapshot may take ioTimeout for each timeoutScale of its size
		timeoutScale = 8 << 20
	)
	layer := streamLayer{
		admittedListener: t.raft, advertise: t.config.Advertise, outbound: &t.outbound, ctx: t.ctx,
		dial: func(ctx context.Context, id raft.ServerID, address string) (net.Conn, error) {
			conn, _, err := t.dialer.dial(ctx, kindRaft, id, address)
			return conn, err
		},
	}
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: maxPooled, Timeout: ioTimeout, Logger: raftlog.Logger(t.config.Log),
		MsgpackUseNewTimeFormat: true,
	})
	network.TimeoutScale = timeoutScale
	return &raftTransport{NetworkTransport: network, abort: t.Abort, close: t.Close}
}
