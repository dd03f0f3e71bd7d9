package embedded

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"

	"holdfast/internal/ordered"
)

// acceptPause is how long nobody is let in after that has failed.
const acceptPause = 100 * time.Millisecond

// listener accepts connections for mochi. Unlike mochi's own it bounds the wait for CONNECT and for a client that does not
// read, and its Close ends connections that never said anything.
type listener struct {
	config Config
	ended  func(net.Conn)

	network net.Listener
	work    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   ordered.Set[*clientConn]
}

func newListener(config Config, ended func(net.Conn)) *listener {
	return &listener{config: config, ended: ended}
}

// Init implements listeners.Listener: it binds.
func (l *listener) Init(*slog.Logger) (err error) {
	l.network, err = net.Listen("tcp", l.config.Listen)
	return err
}

// ID implements listeners.Listener.
func (l *listener) ID() string { return "holdfast" }

// Protocol implements listeners.Listener.
func (l *listener) Protocol() string { return "tcp" }

// Address implements listeners.Listener.
func (l *listener) Address() string {
	if l.network == nil {
		return l.config.Listen
	}
	return l.network.Addr().String()
}

// Serve implements listeners.Listener.
func (l *listener) Serve(establish listeners.EstablishFn) {
	for {
		accepted, err := l.network.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no file descriptors are left, say
			l.config.Log.Warn("a connection could not be accepted", "error", err)
			time.Sleep(acceptPause) // an ended listener is noticed after it
			continue
		}
		conn := &clientConn{Conn: accepted, beneath: accepted, timeout: writeTimeout}
		if l.config.TLS != nil {
			conn.Conn = tls.Server(accepted, l.config.TLS)
		}
		_ = conn.Conn.SetReadDeadline(time.Now().Add(connectTimeout)) // mochi replaces it after CONNECT
		if !l.run(conn, establish) {
			_ = accepted.Close()
			return
		}
	}
}

func (l *listener) run(conn *clientConn, establish listeners.EstablishFn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.open.Add(conn)
	l.work.Go(func() {
		err := establish(l.ID(), conn) // returns when the connection has ended and OnDisconnect has run
		l.ended(conn)
		_ = conn.beneath.Close()
		l.mu.Lock()
		l.open.Delete(conn)
		l.mu.Unlock()
		l.config.Log.Debug("client connection ended", "remote", conn.RemoteAddr(), "error", err)
	})
	return true
}

// Close implements listeners.Listener.
func (l *listener) Close(closeClients listeners.CloseFn) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	_ = l.network.Close()
	for conn := range l.open.All() { // nobody holds up the end for longer than this
		conn.shutDown(time.Second)
	}
	l.mu.Unlock()
	closeClients(l.ID()) // DISCONNECT to each
	l.mu.Lock()
	for conn := range l.open.All() {
		_ = conn.beneath.Close()
	}
	l.mu.Unlock()
	l.work.Wait()
}

// clientConn is a connection as mochi needs it.
type clientConn struct {
	net.Conn          // TLS over tcp, or tcp itself
	beneath  net.Conn // the TCP connection under TLS

	mu       sync.Mutex
	shutdown bool
	timeout  time.Duration // for a write
}

// setTimeout bounds the wait for a client that does not read.
func (c *clientConn) setTimeout(timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timeout = timeout
}

func (c *clientConn) shutDown(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shutdown = true
	_ = c.beneath.SetWriteDeadline(time.Now().Add(grace))
}

// SetDeadline is called by mochi before each read, with the keep-alive time. It is not meant for writes.
func (c *clientConn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// Write bounds the wait for a client that does not read, and closes the connection on an error, which mochi ignores: a packet
// that was written by half must not be followed by another.
func (c *clientConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if !c.shutdown {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.timeout))
	}
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.beneath.Close()
	}
	return n, err
}
