package transport

import (
	"net"
	"sync"
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
