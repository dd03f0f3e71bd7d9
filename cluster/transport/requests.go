package transport

import (
	"net"
	"time"
)

// stallTime is how long raft waits for the next bytes of a request that has begun to arrive. A
// member does not vote while it receives a snapshot. So a leader that hangs while it sends one
// would hold up the election of its successor.
const stallTime = 10 * time.Second

// requestConn is a connection on which raft serves requests, one after the other: it reads a
// request, and then writes the response. It waits for the beginning of a request without a limit,
// and for each further piece of it no longer than stall. At most one goroutine at a time reads or
// writes.
type requestConn struct {
	net.Conn
	stall   time.Duration
	begun   bool // bytes of a request have arrived, and its response is not written yet
	limited bool // a read deadline is set
}

// Read implements net.Conn.
func (c *requestConn) Read(p []byte) (int, error) {
	if c.begun || c.limited {
		var deadline time.Time
		if c.limited = c.begun; c.limited {
			deadline = time.Now().Add(c.stall)
		}
		if err := c.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	c.begun = c.begun || n > 0
	return n, err
}

// Write implements net.Conn.
func (c *requestConn) Write(p []byte) (int, error) {
	c.begun = false
	return c.Conn.Write(p)
}
