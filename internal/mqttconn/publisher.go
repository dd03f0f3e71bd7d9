package mqttconn

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

const (
	// maxIncoming is the Maximum Packet Size of a connection that only publishes.
	maxIncoming = 64 << 10
	// flushAt is how many buffered bytes wake the writer without a Flush.
	flushAt = 64 << 10
	// ackDelay is the coalescing delay for PUBACKs: brokers write each by itself, and one read for
	// each is what costs most. It delays the done callbacks only. A Publish that finds no free
	// packet id ends the delay.
	ackDelay = 5 * time.Millisecond
)

// Publisher is a connection that only publishes, at QoS 1, and reports what becomes of each
// message. It keeps no session: a message that is in flight when the connection ends is reported
// with an error, and the caller decides what to do. It is safe for concurrent use.
type Publisher struct {
	conn     net.Conn
	coalesce *coalescer
	// the next read is delayed so that PUBACKs gather; owned by the goroutine that reads
	delayNextRead bool
	reader        *bufio.Reader
	maxPacket     int  // see MaxPacket
	records       bool // the connection is TLS: each write begins a record
	// free packet ids; their total is the in-flight window, at most the broker's Receive Maximum
	ids       chan uint16
	received  atomic.Uint64
	expedited atomic.Bool // the coalescing delay for PUBACKs is off
	// starved has an element when Publish found no free packet id. It ends the coalescing delay for
	// PUBACKs.
	starved chan struct{}

	mu     sync.Mutex
	more   sync.Cond // the writer waits for bytes
	room   sync.Cond // Publish waits for room
	out    []byte
	bounds []int  // positions in out at which a new record begins
	spare  []byte // buffer for the next out
	// the done callbacks of the messages in flight, by packet id
	flight  []func(reason byte, err error)
	err     error
	polite  bool // send what is buffered before closing
	sending bool // one goroutine writes to the network

	down    chan struct{} // closed when err is set
	ended   chan struct{} // see Done
	workers sync.WaitGroup
}

// NewPublisher makes the handshake on a connection, which it owns from now on, also when it fails.
// The context bounds the handshake only. window bounds the messages in flight, and must be
// positive; the broker's Receive Maximum bounds them, too. If the broker rejects the connection,
// the error wraps a *ReasonCodeError.
func NewPublisher(ctx context.Context, conn net.Conn, connect *packets.Connect,
	window int,
) (*Publisher, error) {
	p := &Publisher{
		starved: make(chan struct{}, 1), down: make(chan struct{}), ended: make(chan struct{}),
	}
	p.coalesce, p.conn = coalescerOf(conn)
	_, p.records = conn.(*tls.Conn)
	p.coalesce.beforeRead = p.beforeRead
	p.reader = bufio.NewReaderSize(p.conn, 32<<10)
	p.more.L, p.room.L = &p.mu, &p.mu
	connack, err := handshake(ctx, p.conn, p.reader, connect, maxIncoming)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	granted := grantedBy(connack, connect)
	p.maxPacket = granted.maxPacket
	window = min(window, granted.receiveMaximum)
	p.ids, p.flight = make(chan uint16, window), make([]func(byte, error), window+1)
	for id := 1; id <= window; id++ {
		p.ids <- uint16(id)
	}
	p.workers.Go(p.write)
	p.workers.Go(p.read)
	p.workers.Go(func() { p.ping(granted.keepAlive) })
	go p.finish()
	return p, nil
}

// MaxPacket returns the size in bytes of the largest packet that the broker accepts; math.MaxInt
// without a limit.
func (p *Publisher) MaxPacket() int { return p.maxPacket }

// Publish buffers a message, which is sent by the next Flush at the latest. It sets the QoS and the
// PacketID of the message. Either it returns an error, and nothing was sent, or done is called
// exactly once: with the PUBACK's reason, or with an error if the connection ended before the
// PUBACK came. Then the message may or may not have been published. done must not block. The
// context bounds only the wait for a packet id: while the broker does not read, Publish blocks
// until the connection ends.
func (p *Publisher) Publish(ctx context.Context, message *packets.Publish,
	done func(reason byte, err error),
) error {
	message.QoS = 1
	if size, ok := PublishSize(message); !ok || size > p.maxPacket {
		return ErrTooLarge
	}
	var id uint16
	if len(p.ids) == 0 {
		select {
		case p.starved <- struct{}{}:
		default:
		}
		p.Flush() // otherwise the buffered messages, which hold ids, are never acknowledged
	}
	select {
	case id = <-p.ids:
	case <-p.down:
		return p.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.out) > maxBuffered && p.err == nil {
		// ends when the broker reads, a ping times out (not with keep-alive 0), or Stop is called
		p.more.Signal()
		p.room.Wait()
	}
	if p.err != nil {
		return p.err
	}
	message.PacketID, p.flight[id] = id, done
	p.out = AppendPublish(p.out, message)
	if len(p.out) > flushAt {
		p.more.Signal()
	}
	return nil
}

// Expedite(true) turns the coalescing delay for PUBACKs off, for a caller that waits for each
// PUBACK. Expedite(false) turns it on again.
func (p *Publisher) Expedite(yes bool) { p.expedited.Store(yes) }

// StartRecord makes what is published next begin a TLS record of its own. A broker may handle all
// messages of one record before it does anything else. Without TLS it does nothing: the network
// keeps no boundaries.
func (p *Publisher) StartRecord() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.records && len(p.out) > 0 {
		p.bounds = append(p.bounds, len(p.out))
	}
}

// Flush sends what was published. Without it a message may wait until more than flushAt bytes are
// buffered. Flush itself writes, unless another goroutine is writing: waking the writer would cost
// more. So while the broker does not read, Flush blocks until the connection ends.
func (p *Publisher) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sending || p.err != nil || len(p.out) == 0 {
		return // the goroutine that is sending, or the writer, sends what was buffered meanwhile
	}
	if p.sendLocked(); len(p.out) > 0 || p.err != nil {
		p.more.Signal()
	}
}

// RemoteAddr returns the broker's address.
func (p *Publisher) RemoteAddr() net.Addr { return p.conn.RemoteAddr() }

// Err returns why the connection ended, or nil.
func (p *Publisher) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Done returns a channel that is closed when the connection has ended and the done callback of
// every message was called.
func (p *Publisher) Done() <-chan struct{} { return p.ended }

// Close sends what is buffered and a DISCONNECT, for at most closeGrace, and waits until the
// connection has ended. It does not wait for PUBACKs: messages in flight end with ErrClosed.
func (p *Publisher) Close() {
	_ = p.conn.SetWriteDeadline(time.Now().Add(closeGrace))
	p.fail(ErrClosed, true)
	<-p.ended
}

// Abort ends the connection at once; what is buffered is not sent. It waits for the end.
func (p *Publisher) Abort() {
	p.Stop()
	<-p.ended
}

// Stop is Abort without the wait.
func (p *Publisher) Stop() { p.fail(ErrClosed, false) }

// finish waits until the connection has ended, and reports the error to the messages in flight.
func (p *Publisher) finish() {
	p.workers.Wait()
	for _, done := range p.flight {
		if done != nil {
			done(0, p.err)
		}
	}
	close(p.ended)
}

// fail begins the end of the connection, and does nothing if that has begun. If polite, buffered
// bytes and a DISCONNECT are still sent.
func (p *Publisher) fail(err error, polite bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	p.err, p.polite = err, polite
	if polite {
		p.out = append(p.out, packets.DISCONNECT<<4, 0)
	} else {
		_ = p.conn.Close()
	}
	close(p.down)
	p.more.Signal()
	p.room.Broadcast()
}

// write sends what Flush did not send, until the connection ends.
func (p *Publisher) write() {
	defer func() { _ = p.conn.Close() }() // ends the reader, too
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.sending || len(p.out) == 0 && p.err == nil {
			p.more.Wait()
		}
		if p.err != nil && (!p.polite || len(p.out) == 0) || !p.sendLocked() {
			return
		}
	}
}

// sendLocked sends what has gathered, in one write for each record, and reports whether the
// connection is good. p.mu is not held meanwhile.
func (p *Publisher) sendLocked() bool {
	sending, bounds := p.out, p.bounds
	p.out, p.spare, p.bounds, p.sending = p.spare[:0], nil, nil, true
	p.room.Broadcast()
	p.mu.Unlock()
	err := p.writeRecords(sending, bounds)
	if err != nil {
		p.fail(err, false)
	}
	p.mu.Lock()
	p.sending = false
	if err == nil && cap(sending) <= 2*maxBuffered {
		p.spare = sending
	}
	return err == nil
}

// writeRecords writes bytes in one call for each part between bounds, or more for a long one.
func (p *Publisher) writeRecords(sending []byte, bounds []int) error {
	from := 0
	for _, to := range append(bounds, len(sending)) {
		if to == from {
			continue
		}
		if err := p.coalesce.writePieces(p.conn, sending[from:to], func() {}); err != nil {
			return err
		}
		from = to
	}
	return nil
}

func (p *Publisher) send(b ...byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.out = append(p.out, b...)
		p.more.Signal()
	}
}

// signsOfLife counts received packets, reads that returned bytes, and the blocked pieces of long
// writes that went through. A large packet delays the PINGRESP, but its bytes show that the broker
// is alive.
func (p *Publisher) signsOfLife() uint64 { return p.received.Load() + p.coalesce.alive.Load() }

// ping sends a PINGREQ twice per keep-alive time, and ends the connection if there was no sign of
// life since the last one.
func (p *Publisher) ping(keepAlive time.Duration) {
	if keepAlive <= 0 {
		return
	}
	ticker := time.NewTicker(keepAlive / 2)
	defer ticker.Stop()
	for {
		last := p.signsOfLife()
		p.send(packets.PINGREQ<<4, 0)
		select {
		case <-p.down:
			return
		case <-ticker.C:
		}
		if p.signsOfLife() == last {
			p.fail(ErrSilent, false)
			return
		}
	}
}
