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

// acceptPause is the delay before the next Accept after one failed.
const acceptPause = 100 * time.Millisecond

// listener accepts connections for mochi. Unlike mochi's own it bounds the wait for CONNECT
// (connectTimeout) and for a write (writeTimeout), and its Close also ends connections that sent no
// CONNECT.
type listener struct {
	config Config
	ended  func(net.Conn) // called when mochi is done with a connection

	network net.Listener
	work    sync.WaitGroup // one for each connection

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
			time.Sleep(acceptPause) // if Close was called, the next Accept returns net.ErrClosed
			continue
		}
		conn := &clientConn{Conn: accepted, tcp: accepted, timeout: writeTimeout}
		if l.config.TLS != nil {
			conn.Conn = tls.Server(accepted, l.config.TLS)
		}
		// mochi replaces it after CONNECT
		_ = conn.Conn.SetReadDeadline(time.Now().Add(connectTimeout))
		if !l.serveConn(conn, establish) {
			_ = accepted.Close()
			return
		}
	}
}

// serveConn serves a connection on a goroutine of its own. It returns false after Close.
func (l *listener) serveConn(conn *clientConn, establish listeners.EstablishFn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.open.Add(conn)
	l.work.Go(func() {
		err := establish(l.ID(), conn) // returns when mochi is done with the connection
		l.ended(conn)
		_ = conn.tcp.Close()
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
	for conn := range l.open.All() {
		// a client that does not read delays Close by one second at most
		conn.beginClose(time.Second)
	}
	l.mu.Unlock()
	closeClients(l.ID()) // mochi sends DISCONNECT, if its queue is empty, and stops the client
	l.mu.Lock()
	for conn := range l.open.All() {
		_ = conn.tcp.Close()
	}
	l.mu.Unlock()
	l.work.Wait()
}

// clientConn is a client's network connection. It bounds writes, and closes itself when a write
// fails.
type clientConn struct {
	net.Conn // TLS over tcp, or tcp itself
	tcp      net.Conn

	mu      sync.Mutex
	closing bool
	timeout time.Duration // for a write
}

// setTimeout bounds the wait for a client that does not read.
func (c *clientConn) setTimeout(timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timeout = timeout
}

// beginClose bounds the writes from now on, together, by a grace time.
func (c *clientConn) beginClose(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	_ = c.tcp.SetWriteDeadline(time.Now().Add(grace))
}

// SetDeadline sets the read deadline only. mochi calls it after CONNECT and before each packet,
// with 1.5 times the keep-alive time. Write sets the deadlines of writes.
func (c *clientConn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// Write bounds the wait for a client that does not read, and closes the connection on an error.
// mochi ignores write errors: without the close it would write the next packet after a partial one.
func (c *clientConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if !c.closing {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.timeout))
	}
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.tcp.Close()
	}
	return n, err
}
