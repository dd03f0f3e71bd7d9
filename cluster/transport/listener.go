package transport

import (
	"net"
	"sync"
)

// admittedListener is a net.Listener. Accept returns connections whose handshake has succeeded.
type admittedListener struct {
	address net.Addr
	next    chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func newAdmittedListener(address net.Addr) *admittedListener {
	return &admittedListener{address: address, next: make(chan net.Conn), done: make(chan struct{})}
}

func (l *admittedListener) push(conn net.Conn) {
	select {
	case l.next <- conn:
	case <-l.done:
		_ = conn.Close() // no request was served on it
	}
}

func (l *admittedListener) stop() { l.once.Do(func() { close(l.done) }) }

// Accept implements net.Listener.
func (l *admittedListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.next:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The port stays open: it is the Transport's.
func (l *admittedListener) Close() error {
	l.stop()
	return nil
}

// Addr implements net.Listener.
func (l *admittedListener) Addr() net.Addr { return l.address }
