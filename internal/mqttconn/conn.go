package mqttconn

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

// ErrPacketTooLarge says that a packet is larger than what was agreed on.
var ErrPacketTooLarge = errors.New("mqtt: packet beyond the limit")

var errMalformedLength = errors.New("mqtt: malformed remaining length")

// Receiver is what a connection is for. Its functions are called on the goroutine that reads, one at a time: while one blocks, nothing
// is read, and TCP pushes back.
type Receiver struct {
	// MaxPacket is the largest packet that is accepted, because a reader allocates what a header claims.
	MaxPacket int
	// Publish takes the messages that come. They never reach paho's client, whose own queue is bounded by a number of messages of any
	// size, and which hands each from goroutine to goroutine.
	Publish func(Message)
	// Puback takes the PUBACKs that are for the caller's own messages, and reports whether this one is; others go to paho's client. It may
	// be nil.
	Puback func(id uint16, reason byte) bool
	// Idle is called when all that had come is received, before more is waited for. It may be nil.
	Idle func()
	// CoalescingDelay returns for how long, at most, what comes may gather before it is read; 0 is not at all. It may be nil.
	CoalescingDelay func() time.Duration
}

// Message is what was received.
type Message struct {
	*paho.Publish
	// Size is how many bytes of memory all that it points to keeps, as long as any of it is kept.
	Size int
	// Redelivered says that the broker has sent it before, over this connection or an earlier one of the session.
	Redelivered bool
}

// Conn wraps a connection for paho's client: messages go to the Receiver, everything else to the client. No packet may be larger than the
// limit. Writes are gathered and flushed when the writer is idle. Paho locks a connection that is a sync.Locker for each packet.
type Conn struct {
	net.Conn // the interface: an embedded *net.TCPConn would let writev and ReadFrom bypass Write
	receiver Receiver
	reader   *bufio.Reader
	coalesce *coalescer
	passing  int   // bytes of a packet for paho's client that are still to come; the reader's own
	broken   error // what was read before cannot be followed

	received atomic.Uint64 // messages and PUBACKs that paho's client does not see
	handling atomic.Bool   // the receiver has a message

	writing sync.Mutex // held for one packet

	mu      sync.Mutex
	more    sync.Cond // the flusher waits for bytes
	room    sync.Cond // a writer waits for room
	out     []byte
	spare   []byte
	resting bool // the reader rests, and has what is written flushed then
	err     error
	closed  bool

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
func NewConn(conn net.Conn, receiver Receiver) *Conn {
	c := &Conn{receiver: receiver, flushed: make(chan struct{})}
	c.coalesce, c.Conn = coalescerOf(conn)
	c.coalesce.beforeRead = c.beforeRead
	c.reader = bufio.NewReaderSize(c.Conn, readBuffer)
	c.more.L, c.room.L = &c.mu, &c.mu
	go c.flush()
	return c
}

// Lock begins a packet.
func (c *Conn) Lock() { c.writing.Lock() }

// Unlock ends a packet.
func (c *Conn) Unlock() {
	c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.resting {
		c.more.Signal()
	}
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

// beforeRead runs before each read of the network.
func (c *Conn) beforeRead() {
	c.idle()
	if c.receiver.CoalescingDelay == nil {
		return
	}
	if most := c.receiver.CoalescingDelay(); most > 0 {
		c.setResting(true)
		c.coalesce.wait(most, nil)
		c.setResting(false)
	}
}

func (c *Conn) idle() {
	if c.receiver.Idle != nil {
		c.receiver.Idle()
	}
}

// setResting lets what is written meanwhile gather, too.
func (c *Conn) setResting(resting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resting = resting
	if !resting && len(c.out) > 0 {
		c.more.Signal()
	}
}

// Read implements net.Conn for one reader, paho's client, which gets whole packets, and none that the receiver takes.
func (c *Conn) Read(p []byte) (int, error) {
	for c.passing == 0 {
		if c.broken == nil {
			c.broken = c.nextPacket()
		}
		if c.broken != nil || c.passing > 0 {
			c.idle() // nobody knows whether the client reads on
		}
		if c.broken != nil {
			return 0, c.broken
		}
	}
	n, err := c.reader.Read(p[:min(len(p), c.passing)])
	c.passing -= n
	return n, err
}

// nextPacket gives the next packet to the receiver, or makes it the one that passes.
func (c *Conn) nextPacket() error {
	header, size, err := peekHeader(c.reader, c.receiver.MaxPacket)
	if err != nil {
		return err
	}
	first, err := c.reader.Peek(1)
	if err != nil {
		return err
	}
	switch kind := first[0] >> 4; {
	case kind == packets.PUBLISH:
		message, err := readPublish(c.reader, header, size)
		if err != nil {
			return err
		}
		c.received.Add(1)
		c.handling.Store(true)
		c.receiver.Publish(message)
		c.handling.Store(false)
		return nil
	case kind == packets.PUBACK && c.receiver.Puback != nil:
		packet, err := c.reader.Peek(min(size, maxPuback))
		if err != nil {
			return err
		}
		if id, reason, ok := parsePuback(packet, header); ok && c.receiver.Puback(id, reason) {
			c.received.Add(1)
			_, err := c.reader.Discard(size)
			return err
		}
	}
	c.passing = size
	return nil
}

// Received counts what the receiver got.
func (c *Conn) Received() uint64 { return c.received.Load() }

// Blocked reports whether the receiver has a message in hand: then it is not the peer that is silent.
func (c *Conn) Blocked() bool { return c.handling.Load() }

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
		c.mu.Unlock()
		<-c.flushed
		c.closeErr = c.Conn.Close()
	})
	return c.closeErr
}

// peekHeader returns the size of the next packet's fixed header and that of the whole packet.
func peekHeader(r *bufio.Reader, limit int) (header, size int, err error) {
	for header = 2; ; header++ {
		start, err := r.Peek(header)
		if err != nil {
			return 0, 0, err
		}
		if start[header-1] >= 128 {
			if header == 5 {
				return 0, 0, errMalformedLength
			}
			continue
		}
		length := 0
		for i, b := range start[1:] {
			length |= int(b&127) << (7 * i)
		}
		if header+length > limit {
			return 0, 0, fmt.Errorf("%w: %d bytes", ErrPacketTooLarge, header+length)
		}
		return header, header + length, nil
	}
}
