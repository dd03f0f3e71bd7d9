package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/internal/ordered"
	"holdfast/internal/tlsconfig"
)

// Config says who this member is and how it is reached. All fields but TLS are required.
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
	// Patience is how long a member may say nothing while a call waits, before its connections are given up; at least 0.9 s.
	Patience time.Duration
	Log      *slog.Logger
}

// Network opens ports and connections.
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

// Handler answers other members.
type Handler interface {
	// Handle answers a call.
	Handle(ctx context.Context, caller peer.Caller, method peer.Method, request []byte) ([]byte, error)
	// Standing returns what is known of another that wants to talk as a member, and a member's address.
	Standing(id raft.ServerID) (peer.Standing, raft.ServerAddress)
}

// Transport is a listener and the connections to other members. Its methods are safe for concurrent use.
type Transport struct {
	config   Config
	listener net.Listener
	handler  atomic.Pointer[handlerBox]
	raft     *streams // accepted connections of raft
	http     *streams // accepted connections of forwarded HTTP
	calls    callClients

	stop    context.CancelFunc
	ctx     context.Context //nolint:containedctx // ends what the transport's own goroutines do
	workers sync.WaitGroup
	closing sync.Once

	admitting chan struct{} // one for each connection whose handshake is under way

	mu       sync.Mutex
	open     ordered.Set[net.Conn]  // accepted, until they are closed
	outbound ordered.Set[*outbound] // raft's, dialled
}

// maxAdmitting bounds the handshakes that are under way at once.
const maxAdmitting = 256

type handlerBox struct{ Handler }

// Listen opens the port. Connections are admitted once Serve was called with who answers them.
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
		admitting: make(chan struct{}, maxAdmitting), raft: newStreams(listener.Addr()), http: newStreams(listener.Addr()),
	}
	t.calls.transport = t
	return t, nil
}

// Address returns where the transport listens.
func (t *Transport) Address() string { return t.listener.Addr().String() }

// Serve begins to admit connections, or exchanges who answers them.
func (t *Transport) Serve(handler Handler) {
	if t.handler.Swap(&handlerBox{handler}) == nil {
		t.workers.Go(t.accept)
	}
}

// Close ends all connections, and waits for whoever serves them.
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
			select {
			case <-time.After(pause):
			case <-t.ctx.Done():
			}
			continue
		}
		select {
		case t.admitting <- struct{}{}:
		case <-t.ctx.Done():
			_ = conn.Close() // nobody was served on it
			return
		}
		t.workers.Go(func() { t.serve(conn) })
	}
}

// Abort ends the connections that raft has dialled, and dials no more: so that nobody waits for a member that hangs.
func (t *Transport) Abort() {
	t.stop()
	t.closeOutbound(func(*outbound) bool { return true })
	t.closeAccepted()
}

func (t *Transport) closeAccepted() {
	t.mu.Lock()
	accepted := slices.Collect(t.open.All())
	t.mu.Unlock()
	for _, conn := range accepted {
		_ = conn.Close() // whoever serves it sees the end
	}
}

// hold notes an accepted connection, so that Close ends it. It returns false when the transport is closing.
func (t *Transport) hold(conn net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return false
	}
	t.open.Add(conn)
	return true
}

func (t *Transport) release(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open.Delete(conn)
}

// serve admits one connection and hands it to whom it is for.
func (t *Transport) serve(accepted net.Conn) {
	conn := net.Conn(&tracked{Conn: t.config.TLS.Server(accepted), transport: t})
	if !t.hold(conn) {
		_ = conn.Close() // nobody was served on it
		<-t.admitting
		return
	}
	_ = conn.SetDeadline(time.Now().Add(t.config.Timeout)) // an error shows at the next use
	theirs, err := t.admit(conn)
	<-t.admitting
	if err != nil {
		t.config.Log.Debug("a member's connection was not admitted", "remote", accepted.RemoteAddr(), "error", err)
		_ = conn.Close() // nobody was served on it
		return
	}
	_ = conn.SetDeadline(time.Time{}) // an error shows at the next use
	tune(accepted, theirs.Kind)
	switch theirs.Kind {
	case kindRaft:
		t.raft.push(conn)
	case kindHTTP:
		t.http.push(conn)
	case kindCall:
		caller := peer.Caller{ID: theirs.From, Certified: func(names ...string) bool { return t.config.TLS.Names(conn, names...) }}
		if theirs.To == "" {
			caller.ID = ""
		}
		t.serveCalls(conn, caller)
	default:
		_ = conn.Close() // of a kind that a newer version may know
	}
}

// tracked is an accepted connection that Close of the Transport ends, whoever has it by then.
type tracked struct {
	net.Conn
	transport *Transport
}

// Close implements net.Conn.
func (c *tracked) Close() error {
	c.transport.release(c)
	return c.Conn.Close()
}

// Secured returns the connection under it, for who wants to see its certificates.
func (c *tracked) Secured() net.Conn { return c.Conn }

// dial opens a connection to a member. An empty id is whoever listens there. It returns who does.
func (t *Transport) dial(ctx context.Context, k kind, to raft.ServerID, address string) (net.Conn, raft.ServerID, error) {
	ctx, cancel := context.WithTimeout(ctx, t.config.Timeout)
	defer cancel()
	raw, err := t.config.Network.Dial(ctx, address)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", peer.ErrUnreachable, err)
	}
	tune(raw, k)
	conn := t.config.TLS.Client(raw, peer.HostOf(raft.ServerAddress(address)), peer.NodeName(to))
	// The handshake ends with the context, whatever the other side does.
	ended := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	id, err := t.greet(conn, k, to)
	if !ended() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close() // the earlier error is returned
		if !errors.Is(err, peer.ErrUnreachable) {
			err = fmt.Errorf("%w: %w", peer.ErrUnreachable, err)
		}
		return nil, id, err
	}
	return conn, id, nil
}

// DialHTTP opens a stream for HTTP to a member.
func (t *Transport) DialHTTP(ctx context.Context, member raft.Server) (net.Conn, error) {
	conn, _, err := t.dial(ctx, kindHTTP, member.ID, string(member.Address))
	return conn, err
}

// HTTP returns the listener for HTTP that other members forward.
func (t *Transport) HTTP() net.Listener { return t.http }

// target joins an id and an address, as raft's transport is given them.
func target(id raft.ServerID, address raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "@" + address
}

// split is the reverse of target. A host has no '@'.
func split(joined raft.ServerAddress) (raft.ServerID, string) {
	at := strings.LastIndexByte(string(joined), '@')
	if at < 0 {
		return "", string(joined)
	}
	return raft.ServerID(joined[:at]), string(joined[at+1:])
}
