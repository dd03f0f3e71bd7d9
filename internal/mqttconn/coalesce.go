package mqttconn

import (
	"bufio"
	"crypto/tls"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// coalescer is a network connection that lets incoming bytes gather before it reads them. Brokers
// write each message by itself, and to wake this process for each costs more than all work on one
// message. The delay adapts to the traffic, within bounds, so that one read finds about
// gatherBytes.
//
// It is the lowest layer: TLS stands on top of it. tls.Conn returns one record for each Read, so a
// delay above TLS would be paid for each message. It is not safe for concurrent reads.
type coalescer struct {
	net.Conn
	reader *bufio.Reader // buffers reads for TLS, which reads in small pieces; nil without TLS
	// beforeRead runs before each read from the socket. All complete packets of earlier reads have
	// been processed then; the socket may hold more. It may call wait. It is set before the first
	// read that it applies to; it is nil during the TLS handshake.
	beforeRead func()

	socket   syscall.RawConn // nil if the connection is not a *net.TCPConn
	delay    time.Duration   // the coalescing delay
	timer    *time.Timer     // of the wait
	waited   bool            // wait delayed the current read; adapt resets it
	lowWater int             // the latest low-water mark of the socket, in bytes
	// sets the socket's mark to lowWater; made once, so that setLowWater does not allocate
	setMark func(fd uintptr)
	// delaysAcks leaves it to the kernel when segments are acknowledged. It is set before the first
	// read that it applies to.
	delaysAcks bool
	more       bool // the last read filled its buffer, so the socket probably holds more

	// signs of life of the peer: reads that returned bytes, and what writePieces counts
	alive atomic.Uint64
}

const (
	minCoalescingDelay = 250 * time.Microsecond
	// maxCoalescingDelay is the upper limit of coalescer.delay. Callers of wait pass a smaller
	// maximum. Light traffic raises coalescer.delay above that, and several full reads lower it
	// again.
	maxCoalescingDelay = time.Second
	// gatherBytes is about forty requests with small values.
	gatherBytes = 16 << 10
	// quickAckBelow is up to how many bytes a read is of light traffic. Its segments are
	// acknowledged at once: a broker that has left Nagle's algorithm on (Mosquitto's default) sends
	// a PUBACK, and holds the reply back until that segment is acknowledged, which the kernel would
	// delay by 40 ms.
	quickAckBelow = 1 << 10
)

func newCoalescer(conn net.Conn) *coalescer {
	c := &coalescer{Conn: conn, delay: minCoalescingDelay}
	c.setMark = func(fd uintptr) { setSocketLowWater(fd, c.lowWater) }
	if tcp, ok := conn.(*net.TCPConn); ok {
		c.socket, _ = tcp.SyscallConn() // without it the delay is only a sleep
	}
	return c
}

// withTLS returns a TLS client connection over the coalescer.
func (c *coalescer) withTLS(config *tls.Config) *tls.Conn {
	c.reader = bufio.NewReaderSize(socketReader{c}, readBuffer)
	return tls.Client(c, config)
}

// coalescerOf returns the coalescer below a connection and the connection to use. A connection that
// no Dialer made gets a new coalescer. If that connection is TLS, the new coalescer is not below
// it. Then the coalescer sees no reads, and counts only what writePieces counts.
func coalescerOf(conn net.Conn) (*coalescer, net.Conn) {
	switch known := conn.(type) {
	case *coalescer:
		return known, conn
	case *tls.Conn:
		if c, ok := known.NetConn().(*coalescer); ok {
			return c, conn
		}
		return newCoalescer(nil), conn
	}
	c := newCoalescer(conn)
	return c, c
}

// Read implements net.Conn.
func (c *coalescer) Read(p []byte) (int, error) {
	if c.reader != nil {
		return c.reader.Read(p)
	}
	return socketReader{c}.Read(p)
}

// socketReader reads from the socket, after beforeRead.
type socketReader struct{ *coalescer }

// Read implements io.Reader.
func (r socketReader) Read(p []byte) (int, error) {
	if r.beforeRead != nil {
		r.beforeRead()
	}
	n, err := r.Conn.Read(p)
	if n > 0 {
		r.alive.Add(1)
	}
	if n > 0 && n < quickAckBelow && r.socket != nil && !r.delaysAcks {
		_ = r.socket.Control(setQuickAck)
	}
	r.adapt(n, n == len(p))
	return n, err
}

const (
	// writePiece is how many bytes one call writes to the network at most.
	writePiece = 64 << 10
	// minBlockedWrite is the duration from which a write counts as blocked: it has waited for room
	// in the socket's buffer.
	minBlockedWrite = time.Millisecond
)

// writePieces writes data to conn, the top of the stack: the TLS connection, or c itself. It writes
// long data in pieces, and calls beforePiece before each. A piece that had to wait for room shows
// that the peer takes bytes: that is a sign of life, however long a packet takes. Short data shows
// nothing: the socket's buffer takes it, also when the peer is gone.
func (c *coalescer) writePieces(conn net.Conn, data []byte, beforePiece func()) error {
	long := len(data) > writePiece
	for len(data) > 0 {
		piece := data[:min(writePiece, len(data))]
		data = data[len(piece):]
		beforePiece()
		began := time.Now()
		if _, err := conn.Write(piece); err != nil {
			return err
		}
		if long && time.Since(began) >= minBlockedWrite {
			c.alive.Add(1)
		}
	}
	return nil
}

// wait sleeps for the delay, or for limit if that is shorter, so that bytes gather. It ends early
// when it receives from wake; bytes that arrive do not end it. It returns at once when there is
// more to read already.
func (c *coalescer) wait(limit time.Duration, wake <-chan struct{}) {
	if c.waited = !c.more; !c.waited {
		return
	}
	// A sleep alone would not do: the runtime wakes up for each arrival, whether or not a goroutine
	// waits for it.
	c.setLowWater(readBuffer)
	if c.timer == nil {
		c.timer = time.NewTimer(min(c.delay, limit))
	} else {
		c.timer.Reset(min(c.delay, limit))
	}
	select {
	case <-c.timer.C:
	case <-wake:
		c.timer.Stop()
	}
	c.setLowWater(1)
}

// adapt adjusts the delay to the number of bytes that a delayed read found.
func (c *coalescer) adapt(n int, filled bool) {
	c.more = filled
	switch {
	case !c.waited:
	case n > 2*gatherBytes:
		c.delay = max(c.delay/2, minCoalescingDelay)
	case n < gatherBytes/2:
		c.delay = min(2*c.delay, maxCoalescingDelay)
	}
	c.waited = false
}

// setLowWater sets how many bytes have to be there for the connection to count as readable.
func (c *coalescer) setLowWater(bytes int) {
	if c.socket != nil {
		c.lowWater = bytes
		// an error means that the connection has ended; the next read returns it
		_ = c.socket.Control(c.setMark)
	}
}
