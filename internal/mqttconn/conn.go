package mqttconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// Receiver has the callbacks and limits of a connection. MaxPacket and Publish are required. The
// functions are called on the goroutine that reads, one at a time: while one blocks, nothing is
// read, and TCP applies backpressure.
type Receiver struct {
	// MaxPacket is the size in bytes of the largest packet that is accepted. A reader allocates the
	// size that a header claims.
	MaxPacket int
	// Publish receives each message. It does not acknowledge it: see Acks.
	Publish func(Message)
	// Puback is called for each PUBACK. It returns false if the PUBACK is not for the caller's
	// messages: these have packet ids below FirstID. It may be nil.
	Puback func(id uint16, reason byte) bool
	// Idle is called before each read from the network, before each packet that is no PUBLISH and
	// is not taken by Puback, and when reading fails. The buffer may hold part of a message then.
	// On a TLS connection that no Dialer made, Idle is not called before reads. It may be nil.
	Idle func()
	// DelaysAcks leaves the delay of TCP acknowledgements to the kernel, as other MQTT clients do.
	// So round trips show what these wait for.
	DelaysAcks bool
	// CoalescingDelay returns for how long a read from the network may be delayed at most, so that
	// more bytes gather; 0 is no delay. It may be nil.
	CoalescingDelay func() time.Duration
}

// FirstID is the first packet id that Publish and Subscribe use. Lower ones are the caller's, who
// sends with Send, and keeps to the broker's Receive Maximum by itself.
const FirstID = 1 << 15

// Conn is a connection to a broker. Writes are buffered: a goroutine, the flusher, sends them after
// each packet, or after the reader's coalescing delay (Receiver.CoalescingDelay). Another one keeps
// the connection alive: any byte from the broker is a sign of life, and while Receiver.Publish
// blocks the reader, the broker does not count as silent. All methods are safe for concurrent use;
// Start is called once, and Close not from a Receiver.
type Conn struct {
	network   net.Conn
	receiver  Receiver
	reader    *bufio.Reader
	coalesce  *coalescer
	maxPacket int // see MaxPacket
	keepAlive time.Duration

	received atomic.Uint64 // packets
	handling atomic.Bool   // Receiver.Publish is running

	slots   chan struct{} // one for each message of Publish that may be in flight
	waiting waiting       // answers that Publish and Subscribe wait for

	mu    sync.Mutex
	more  sync.Cond // the flusher waits for bytes
	room  sync.Cond // a writer waits for room
	out   []byte    // buffered, not yet sent
	spare []byte    // buffer for the next out
	// the reader waits for the coalescing delay; the flusher is woken when that ends
	delaying bool
	err      error // why the connection ended; nothing is written any more
	closing  bool  // what is buffered is the last, and is sent within closeGrace

	done    chan struct{} // closed when err is set
	workers sync.WaitGroup
}

const (
	readBuffer  = 64 << 10
	maxBuffered = 1 << 20
	// maxPublishing bounds the messages of Publish in flight. The broker's Receive Maximum bounds
	// them, too.
	maxPublishing = 64
	// closeGrace is how long Close tries to send what is buffered, a DISCONNECT as a rule.
	closeGrace = time.Second
	// writeTimeout bounds one write to the network. A peer that does not read for that long loses
	// the connection.
	writeTimeout = 30 * time.Second
)

// Connect makes the handshake on a connection, which it owns from now on, also when it fails. The
// context bounds the handshake only. Nothing is read after the CONNACK before Start; Close must be
// called. If the broker rejects the connection, the error wraps a *ReasonCodeError.
func Connect(ctx context.Context, network net.Conn, connect *packets.Connect,
	receiver Receiver,
) (*Conn, *packets.Connack, error) {
	c := newConn(network, receiver)
	connack, err := handshake(ctx, c.network, c.reader, connect, receiver.MaxPacket)
	if err != nil {
		return nil, nil, errors.Join(err, network.Close())
	}
	granted := grantedBy(connack, connect)
	c.keepAlive, c.maxPacket = granted.keepAlive, granted.maxPacket
	for range min(maxPublishing, granted.receiveMaximum) {
		c.slots <- struct{}{}
	}
	c.workers.Go(c.flush)
	return c, connack, nil
}

func newConn(network net.Conn, receiver Receiver) *Conn {
	c := &Conn{
		receiver: receiver, maxPacket: math.MaxInt, slots: make(chan struct{}, maxPublishing),
		done:    make(chan struct{}),
		waiting: waiting{requests: make(map[uint16]*request)},
	}
	c.coalesce, c.network = coalescerOf(network)
	c.coalesce.delaysAcks = receiver.DelaysAcks
	c.reader = bufio.NewReaderSize(c.network, readBuffer)
	c.more.L, c.room.L = &c.mu, &c.mu
	return c
}

// Start begins to read and to keep the connection alive.
func (c *Conn) Start() {
	c.coalesce.beforeRead = c.beforeRead
	c.workers.Go(c.read)
	c.workers.Go(c.ping)
}

// MaxPacket returns the size in bytes of the largest packet that the broker accepts; math.MaxInt
// without a limit.
func (c *Conn) MaxPacket() int { return c.maxPacket }

// RemoteAddr returns the broker's address.
func (c *Conn) RemoteAddr() net.Addr { return c.network.RemoteAddr() }

// Done returns a channel that is closed when the connection has ended. Receiver.Publish may still
// run.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended, or nil: a *ReasonCodeError after a DISCONNECT, io.EOF if
// the broker closed it without one, ErrSilent, ErrClosed after Close, ErrPacketTooLarge, or an
// error of the network.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// sendNow writes a small packet without waiting for room: the reader must not wait for a broker
// that does not read, which may wait for this reader.
func (c *Conn) sendNow(packet []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.appendLocked(packet)
}

func (c *Conn) appendLocked(packet []byte) error {
	if c.err != nil {
		return c.err
	}
	c.out = append(c.out, packet...)
	if !c.delaying {
		c.more.Signal()
	}
	return nil
}

// Send writes one encoded packet. It blocks while more than maxBuffered bytes are buffered.
func (c *Conn) Send(packet []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > maxBuffered && c.err == nil {
		c.more.Signal()
		c.room.Wait()
	}
	return c.appendLocked(packet)
}

func (c *Conn) flush() {
	defer func() { _ = c.network.Close() }() // wakes the reader; without c.mu: TLS says goodbye
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.out) == 0 && c.err == nil {
			c.more.Wait()
		}
		if c.err != nil && (!c.closing || len(c.out) == 0) {
			return
		}
		sending := c.out
		c.out, c.spare = c.spare[:0], nil
		c.room.Broadcast()
		c.mu.Unlock()
		err := c.coalesce.writePieces(c.network, sending, c.extendDeadline)
		c.mu.Lock()
		if cap(sending) <= 2*maxBuffered {
			c.spare = sending
		}
		if err != nil {
			c.failLocked(err)
			c.closing = false
		}
	}
}

// extendDeadline lets the next piece of a write take writeTimeout, unless the connection is ending.
func (c *Conn) extendDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		_ = c.network.SetWriteDeadline(time.Now().Add(writeTimeout))
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

// read handles what the broker sends, until the connection ends.
func (c *Conn) read() {
	for {
		if err := c.nextPacket(); err != nil {
			c.idle()
			c.fail(err)
			return
		}
	}
}

// nextPacket reads and handles one packet. An error ends the connection.
func (c *Conn) nextPacket() error {
	header, size, err := peekHeader(c.reader, c.receiver.MaxPacket)
	if err != nil {
		return err
	}
	first, err := c.reader.Peek(1)
	if err != nil {
		return err
	}
	switch first[0] >> 4 {
	case packets.PUBLISH:
		message, err := readPublish(c.reader, header, size)
		if err != nil {
			return err
		}
		c.handling.Store(true)
		c.receiver.Publish(message)
		c.received.Add(1) // before the next line: ping must not take this for silence
		c.handling.Store(false)
		return nil
	case packets.PUBACK:
		packet, err := c.reader.Peek(min(size, maxPuback))
		if err != nil {
			return err
		}
		id, reason, ok := parsePuback(packet, header)
		if !ok {
			return errMalformed
		}
		if c.receiver.Puback == nil || !c.receiver.Puback(id, reason) {
			c.idle()
			c.waiting.answer(packets.PUBACK, id, []byte{reason})
		}
		c.received.Add(1)
		_, err = c.reader.Discard(size)
		return err
	}
	c.idle()
	packet, err := ReadPacket(c.reader, c.receiver.MaxPacket)
	if err != nil {
		return err
	}
	c.received.Add(1)
	switch content := packet.Content.(type) {
	case *packets.Pingresp:
	case *packets.Suback:
		c.waiting.answer(packets.SUBACK, content.PacketID, content.Reasons)
	case *packets.Disconnect:
		return &ReasonCodeError{Reason: content.ReasonCode, Text: content.Properties.ReasonString}
	default:
		return fmt.Errorf("mqtt: unexpected %s", packet.PacketType())
	}
	return nil
}

// fail ends the connection; only the first reason counts.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

func (c *Conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	c.more.Signal()
	c.room.Broadcast()
	_ = c.network.SetWriteDeadline(time.Now().Add(closeGrace)) // a write in progress may block
}

// Close sends what is buffered and a DISCONNECT, which keeps the session, for at most closeGrace,
// and waits until the connection has ended and Receiver.Publish has returned. It may be called
// several times.
func (c *Conn) Close() {
	c.mu.Lock()
	if c.err == nil {
		c.closing = true
		c.out = append(c.out, packets.DISCONNECT<<4, 0)
		c.failLocked(ErrClosed)
	}
	c.mu.Unlock()
	c.workers.Wait()
}

// ping sends a PINGREQ twice per keep-alive time, and ends the connection if there was no sign of
// life since the last one.
func (c *Conn) ping() {
	if c.keepAlive <= 0 {
		return
	}
	ticker := time.NewTicker(c.keepAlive / 2)
	defer ticker.Stop()
	for {
		last := c.signsOfLife()
		// an error means that the connection has ended
		_ = c.sendNow([]byte{packets.PINGREQ << 4, 0})
		select {
		case <-c.done:
			return
		case <-ticker.C:
		}
		if blocked := c.handling.Load(); !blocked && c.signsOfLife() == last {
			c.fail(ErrSilent)
			return
		}
	}
}

// signsOfLife counts received packets, reads that returned bytes, and the blocked pieces of long
// writes that went through. A large packet delays the PINGRESP, but its bytes show that the broker
// is alive.
func (c *Conn) signsOfLife() uint64 { return c.received.Load() + c.coalesce.alive.Load() }
