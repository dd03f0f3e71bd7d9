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

// ErrPacketTooLarge says that a received packet is larger than Receiver.MaxPacket.
var ErrPacketTooLarge = errors.New("mqtt: received packet exceeds the limit")

var errMalformedLength = errors.New("mqtt: malformed remaining length")

// Receiver has the callbacks and limits of a connection. MaxPacket and Publish are required. The functions are called on the goroutine that reads, one at a
// time: while one blocks, nothing is read, and TCP applies backpressure.
type Receiver struct {
	// MaxPacket is the size in bytes of the largest packet that is accepted. A reader allocates the size that a header claims.
	MaxPacket int
	// Publish receives each message. Messages bypass paho's client: its queue is bounded by count, not by bytes, and it passes each message
	// between goroutines.
	Publish func(Message)
	// Puback is called for each PUBACK. It returns false if the PUBACK is not for the caller's messages. Then paho's client gets it. It may be
	// nil.
	Puback func(id uint16, reason byte) bool
	// Idle is called before each read from the network, before each packet that is left to paho's client, and when reading fails. The buffer may hold
	// part of a message then. On a TLS connection that no Dialer made, Idle is not called before reads. It may be nil.
	Idle func()
	// DelaysAcks leaves the delay of TCP acknowledgements to the kernel, as other MQTT clients do. So round trips show what
	// these wait for.
	DelaysAcks bool
	// CoalescingDelay returns for how long a read from the network may be delayed at most, so that more bytes gather; 0 is no delay. It may be nil.
	CoalescingDelay func() time.Duration
}

// Message is a received PUBLISH.
type Message struct {
	*paho.Publish
	// Size is the size in bytes of the packet and of the copy of its text, which the strings and byte slices of the message point into. It does not count the
	// list of user properties.
	Size int
	// Redelivered is the DUP flag: the broker may have sent the message before, on an earlier connection of the session.
	Redelivered bool
}

// Conn wraps a connection for paho's client. Messages, and the PUBACKs that the Receiver takes, go to the Receiver. Everything else goes to the client. No
// received packet may be larger than Receiver.MaxPacket. Writes are buffered. A goroutine, the flusher, sends them after each packet, or after the reader's
// coalescing delay (Receiver.CoalescingDelay). Paho locks a connection that is a sync.Locker for each packet.
type Conn struct {
	net.Conn // the interface: an embedded *net.TCPConn would let writev and ReadFrom bypass Write
	receiver Receiver
	reader   *bufio.Reader
	coalesce *coalescer
	unread   int   // bytes of the current packet that paho's client has not read yet; owned by the goroutine that reads
	broken   error // the first read error; all later reads return it

	received atomic.Uint64 // number of messages and PUBACKs that the Receiver has taken
	handling atomic.Bool   // Receiver.Publish is running

	writing sync.Mutex // held for one packet

	mu       sync.Mutex
	more     sync.Cond // the flusher waits for bytes
	room     sync.Cond // a writer waits for room
	out      []byte    // buffered, not yet sent
	spare    []byte    // buffer for the next out
	delaying bool      // the reader waits for the coalescing delay; the flusher is woken when that ends
	err      error
	closed   bool
	hurried  bool // Hurry was called during the write in progress

	flushed   chan struct{} // closed when the flusher has ended
	closeOnce sync.Once
	closeErr  error
}

const (
	readBuffer  = 64 << 10
	maxBuffered = 1 << 20
	// closeGrace is how long Close tries to send what is buffered, a DISCONNECT as a rule.
	closeGrace = time.Second
	// writeTimeout bounds one write to the network. A peer that does not read for that long loses the connection.
	writeTimeout = 30 * time.Second
)

// NewConn wraps a connection, which it owns from now on, and starts the flusher. The caller calls Close.
func NewConn(conn net.Conn, receiver Receiver) *Conn {
	c := &Conn{receiver: receiver, flushed: make(chan struct{})}
	c.coalesce, c.Conn = coalescerOf(conn)
	c.coalesce.beforeRead, c.coalesce.delaysAcks = c.beforeRead, receiver.DelaysAcks
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
	if !c.delaying {
		c.more.Signal()
	}
}

// Write appends to the packet that is being written. It blocks while more than maxBuffered bytes are buffered.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > maxBuffered && c.err == nil && !c.closed {
		c.more.Signal()
		c.room.Wait() // the packet's lock stays held, so that no other packet is interleaved
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
		c.hurried = false
		c.mu.Unlock()
		err := c.coalesce.writePieces(c.Conn, sending, c.extendDeadline)
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

// extendDeadline lets the next piece of a write take writeTimeout, unless Hurry was called for that write or the connection is being closed.
func (c *Conn) extendDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && !c.hurried {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
}

// beforeRead runs before each read of the network.
func (c *Conn) beforeRead() {
	c.idle()
	if c.receiver.CoalescingDelay == nil {
		return
	}
	if most := c.receiver.CoalescingDelay(); most > 0 {
		c.setDelaying(true)
		c.coalesce.wait(most, nil)
		c.setDelaying(false)
	}
}

func (c *Conn) idle() {
	if c.receiver.Idle != nil {
		c.receiver.Idle()
	}
}

// setDelaying begins or ends the coalescing delay for writes.
func (c *Conn) setDelaying(delaying bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delaying = delaying
	if !delaying && len(c.out) > 0 {
		c.more.Signal()
	}
}

// Read returns the bytes of the packets that the Receiver does not take. Only the reading goroutine of paho's client calls it.
func (c *Conn) Read(p []byte) (int, error) {
	for c.unread == 0 {
		if c.broken == nil {
			c.broken = c.nextPacket()
		}
		if c.broken != nil || c.unread > 0 {
			c.idle() // paho's client may take long before it reads again
		}
		if c.broken != nil {
			return 0, c.broken
		}
	}
	n, err := c.reader.Read(p[:min(len(p), c.unread)])
	c.unread -= n
	return n, err
}

// nextPacket passes the next packet to the Receiver if it is a PUBLISH, or a PUBACK that the Receiver takes. It leaves any other packet to Read.
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
	c.unread = size
	return nil
}

// SignsOfLife counts the packets that the receiver has taken, the reads that returned bytes, and the blocked pieces of long writes that went through. A large
// packet delays the PINGRESP, but its bytes show that the peer is alive.
func (c *Conn) SignsOfLife() uint64 { return c.received.Load() + c.coalesce.alive.Load() }

// Blocked reports whether Receiver.Publish is running. Then a lack of packets is not the peer's silence.
func (c *Conn) Blocked() bool { return c.handling.Load() }

// Hurry bounds the network write in progress to closeGrace. A caller that is blocked in Write then continues, or gets an error.
func (c *Conn) Hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hurried = true
	_ = c.Conn.SetWriteDeadline(time.Now().Add(closeGrace))
}

// Close sends what is buffered, for at most closeGrace, and closes the connection. It may be called several times.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.closed = true
		_ = c.Conn.SetWriteDeadline(time.Now().Add(closeGrace)) // the flusher does not extend it: closed is set
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
