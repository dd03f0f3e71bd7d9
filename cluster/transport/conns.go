package transport

import (
	"net"
	"sync"
	"time"

	"holdfast/internal/ordered"
)

// conns is a set of open connections, all accepted or all dialled, through which they can be
// closed. All methods are safe for concurrent use.
type conns[T interface {
	comparable
	net.Conn
}] struct {
	mu     sync.Mutex
	open   ordered.Set[T]
	closed bool
}

// add adds an open connection. After closeAll it adds nothing and returns net.ErrClosed.
func (c *conns[T]) add(conn T) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.open.Add(conn)
	return nil
}

// remove takes a connection out of the set. The connection's Close calls it.
func (c *conns[T]) remove(conn T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Delete(conn)
}

// closeAll ends all connections, and lets none be added any more.
func (c *conns[T]) closeAll() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.closeIf(func(T) bool { return true })
}

// closeIf closes the connections for which chosen returns true. Reads and writes in progress fail,
// too. chosen is called with c.mu held.
func (c *conns[T]) closeIf(chosen func(T) bool) {
	var ending []T
	c.mu.Lock()
	for conn := range c.open.All() {
		if chosen(conn) {
			ending = append(ending, conn)
		}
	}
	c.mu.Unlock()
	for _, conn := range ending {
		// ends the reads and writes of all of them before the first Close, which may take 5 s to
		// send TLS's last alert
		_ = conn.SetDeadline(time.Unix(1, 0))
	}
	var closing sync.WaitGroup
	for _, conn := range ending {
		// what uses the connection gets an error from its read or write
		closing.Go(func() { _ = conn.Close() })
	}
	closing.Wait()
}
