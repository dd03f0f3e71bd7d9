package mqttconn

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// ErrPacketTooLarge says that a packet is larger than what was agreed on.
var ErrPacketTooLarge = errors.New("mqtt: packet beyond the limit")

var errMalformedLength = errors.New("mqtt: malformed remaining length")

// Conn wraps a connection for paho's client. Reads are buffered, and bounded in two ways: no packet may be larger than
// maxPacket, because paho allocates what a header claims; and once more than maxHeld bytes of PUBLISH packets were read that
// nobody has released, it stops reading, so that TCP pushes back: paho's own queue is bounded by a number of messages of any
// size. Writes are gathered and flushed when the writer is idle. Paho locks a connection that is a sync.Locker for each packet.
type Conn struct {
	net.Conn // the interface: an embedded *net.TCPConn would let writev and ReadFrom bypass Write
	reader   *bufio.Reader
	packet   packetGuard

	writing sync.Mutex // held for one packet

	mu      sync.Mutex
	more    sync.Cond // the flusher waits for bytes
	room    sync.Cond // a writer waits for room
	freed   sync.Cond // the reader waits for releases
	out     []byte
	spare   []byte
	held    int
	maxHeld int
	sizes   []int // of the PUBLISH packets that were read and not yet taken, in order
	err     error
	closed  bool
	blocked bool

	flushed   chan struct{}
	closeOnce sync.Once
	closeErr  error
}

const (
	readBuffer  = 64 << 10
	maxBuffered = 1 << 20
	// closeGrace is how long Close tries to send what is buffered, a DISCONNECT as a rule.
	closeGrace = time.Second
	// writeTimeout is how long the peer may not read before the connection is given up.
	writeTimeout = 30 * time.Second
)

// NewConn takes over a connection.
func NewConn(conn net.Conn, maxPacket, maxHeld int) *Conn {
	c := &Conn{
		Conn: conn, reader: bufio.NewReaderSize(conn, readBuffer), packet: packetGuard{limit: maxPacket},
		maxHeld: maxHeld, flushed: make(chan struct{}),
	}
	c.more.L, c.room.L, c.freed.L = &c.mu, &c.mu, &c.mu
	go c.flush()
	return c
}

// Lock begins a packet.
func (c *Conn) Lock() { c.writing.Lock() }

// Unlock ends a packet.
func (c *Conn) Unlock() {
	c.writing.Unlock()
	c.more.Signal()
}

// Write appends to the packet that is being written. It blocks while too much is waiting to be sent.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > maxBuffered && c.err == nil && !c.closed {
		c.more.Signal()
		c.room.Wait() // the packet's lock stays taken: nobody gets between its pieces
	}
	if c.err != nil {
		return 0, c.err
	}
	if c.closed {
		return 0, net.ErrClosed
	}
	c.out = append(c.out, p...)
	return len(p), nil
}

func (c *Conn) flush() {
	defer close(c.flushed)
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.out) == 0 && !c.closed {
			c.more.Wait()
		}
		if len(c.out) == 0 {
			return
		}
		sending := c.out
		c.out, c.spare = c.spare[:0], nil
		c.room.Broadcast()
		if !c.closed {
			_ = c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		}
		c.mu.Unlock()
		_, err := c.Conn.Write(sending)
		c.mu.Lock()
		if cap(sending) <= 2*maxBuffered {
			c.spare = sending
		}
		if err != nil {
			c.err = err
			c.room.Broadcast()
			_ = c.Conn.Close() // wakes the reader, which reports it
			return
		}
	}
}

// Read implements net.Conn for one reader.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for c.held > c.maxHeld && !c.closed && c.err == nil {
		c.blocked = true
		c.freed.Wait()
	}
	c.blocked = false
	c.mu.Unlock()
	n, err := c.reader.Read(p)
	if guarded := c.packet.check(p[:n]); guarded != nil {
		return 0, guarded
	}
	if begun := c.packet.begun; len(begun) > 0 {
		c.mu.Lock()
		for _, size := range begun {
			c.held += size
		}
		c.sizes = append(c.sizes, begun...)
		c.mu.Unlock()
		c.packet.begun = begun[:0]
	}
	return n, err
}

// TakeSize returns the size on the wire of the next PUBLISH packet. It is called once for each, in the order in which they
// were received; the size is given back by Release.
func (c *Conn) TakeSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sizes) == 0 {
		return 0
	}
	size := c.sizes[0]
	c.sizes = c.sizes[1:]
	return size
}

// Release gives bytes back that TakeSize returned.
func (c *Conn) Release(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held -= bytes
	c.freed.Signal()
}

// Blocked reports whether the reader waits for a Release: then it is not the peer that is silent.
func (c *Conn) Blocked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked
}

// Hurry bounds what is still to be written: whoever waits for room in the buffer gets it, or an error, soon.
func (c *Conn) Hurry() { _ = c.Conn.SetWriteDeadline(time.Now().Add(closeGrace)) }

// Close sends what is buffered and closes. It may be called several times.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(closeGrace))
		c.mu.Lock()
		c.closed = true
		c.more.Signal()
		c.room.Broadcast()
		c.freed.Broadcast()
		c.mu.Unlock()
		<-c.flushed
		c.closeErr = c.Conn.Close()
	})
	return c.closeErr
}

// packetGuard follows the framing of what is read and refuses a packet by its header, before anybody allocates for it.
type packetGuard struct {
	limit  int
	skip   int // bytes of the current packet that are still to come
	length int
	shift  int
	header int // bytes of the fixed header so far
	kind   byte
	begun  []int // sizes of the PUBLISH packets whose headers were read
}

func (g *packetGuard) check(b []byte) error {
	for len(b) > 0 {
		switch {
		case g.skip > 0:
			n := min(g.skip, len(b))
			g.skip -= n
			b = b[n:]
			continue
		case g.header == 0:
			g.header, g.length, g.shift, g.kind = 1, 0, 0, b[0]>>4
		default:
			g.header++
			g.length |= int(b[0]&127) << g.shift
			g.shift += 7
			switch {
			case b[0] >= 128 && g.header == 5:
				return errMalformedLength
			case b[0] >= 128:
			case g.header+g.length > g.limit:
				return fmt.Errorf("%w: %d bytes", ErrPacketTooLarge, g.header+g.length)
			default:
				if g.kind == packets.PUBLISH {
					g.begun = append(g.begun, g.header+g.length)
				}
				g.skip, g.header = g.length, 0
			}
		}
		b = b[1:]
	}
	return nil
}
