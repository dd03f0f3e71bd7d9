package sim

import (
	"bytes"
	"io"
	"net"
	"os"
	"time"

	"holdfast/test/sim/schedule"
)

// conn is one end of a connection. It implements net.Conn. Write never blocks: it buffers what the
// other side has not read.
type conn struct {
	stack   *stack
	peer    *conn
	in, out *stream
	read    *deadline
	dialled bool // this end has made the connection

	mu            schedule.Mutex
	link          link      // carries what this end writes
	spoken        bool      // this end has written
	aborted       error     // what Write returns; nil while this end is open
	writeDeadline time.Time // zero is none
}

// stream is one direction of a connection.
type stream struct {
	mu       schedule.Mutex
	chunks   []chunk
	ended    error     // the error that the reader gets after all chunks, from endsAt on
	endsAt   time.Time // when the end reaches the reader
	resetAt  time.Time // when a reset from the writing side reaches the reader; zero is none
	broken   error     // the error that the reader gets at once, before the chunks
	unwanted bool      // the reading end is closed: data that arrives is answered with a reset
	wake     chan struct{}
}

type chunk struct {
	at   time.Time // when it arrives
	data []byte
}

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// afterDataLocked returns at, or the time at which the last data arrives if that is later.
func (s *stream) afterDataLocked(at time.Time) time.Time {
	if last := len(s.chunks) - 1; last >= 0 && at.Before(s.chunks[last].at) {
		return s.chunks[last].at
	}
	return at
}

// end ends the stream at a time: the reader gets the data that is under way, and then the error.
func (s *stream) end(err error, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended, s.endsAt = err, s.afterDataLocked(at)
	}
	s.poke()
}

// reset makes a reset arrive at the reader at a time. Data that the reader has not read by then is
// lost.
func (s *stream) reset(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resetAt.IsZero() {
		s.resetAt = s.afterDataLocked(at)
	}
	s.poke()
}

// breakOff ends the reading end at once: the reader gets the error, and no more data. It returns
// when the last data that nobody has read arrives; zero if there is none.
func (s *stream) breakOff(err error) (unread time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = err
	}
	s.unwanted = true
	s.poke()
	return s.afterDataLocked(time.Time{})
}

// outgoing returns the link that carries what this end writes.
func (c *conn) outgoing() link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

// become sets the class of both directions.
func (c *conn) become(kind class) {
	for _, end := range []*conn{c, c.peer} {
		end.mu.Lock()
		end.link.class = kind
		end.mu.Unlock()
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	first := c.dialled && !c.spoken && c.link.class == classCall
	c.spoken = true
	err := c.aborted
	if err == nil && !c.writeDeadline.IsZero() && !time.Now().Before(c.writeDeadline) {
		err = os.ErrDeadlineExceeded
	}
	c.mu.Unlock()
	if err == nil && c.wasReset() {
		err = errReset
	}
	if err != nil {
		return 0, err
	}
	if first && bytes.Contains(p, []byte(`"kind":"raft"`)) {
		// the first write is the hello of the handshake, which says what the connection is for
		c.become(classRaft)
	}
	if at := c.arrival(); !c.out.add(at, p) {
		// the closed end answers the data
		c.in.reset(at.Add(c.stack.network.drawLatency(c.peer.outgoing())))
	}
	return len(p), nil
}

// arrival draws the time at which what this end sends now arrives.
func (c *conn) arrival() time.Time {
	return time.Now().Add(c.stack.network.drawLatency(c.outgoing()))
}

// add appends data that arrives at a time, or after the data before it if that is later. It returns
// false if the reading end is closed.
func (s *stream) add(at time.Time, data []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unwanted {
		return false
	}
	s.chunks = append(s.chunks, chunk{s.afterDataLocked(at), bytes.Clone(data)})
	s.poke()
	return true
}

// wasReset reports whether a reset from the other end has arrived.
func (c *conn) wasReset() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	_, arrived := c.resetLocked()
	return arrived
}

// resetLocked reports whether a reset from the other end has arrived, or returns what to wait for
// until it arrives: nothing if none was sent. A reset answers data: it needs both directions, and a
// host with power. c.in.mu must be held.
func (c *conn) resetLocked() (waiting, bool) {
	if c.in.resetAt.IsZero() {
		return waiting{}, false
	}
	there := c.outgoing()
	if opened := c.stack.network.shut([]link{there, c.peer.outgoing()},
		&c.stack.network.host(there.to).power); opened != nil {
		return waiting{opened: opened}, false
	}
	if delay := time.Until(c.in.resetAt); delay > 0 {
		return waiting{delay: delay}, false
	}
	return waiting{}, true
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		if c.read.passed() {
			return 0, os.ErrDeadlineExceeded
		}
		n, wait, err := c.readArrived(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		if wait.opened != nil {
			select {
			case <-wait.opened:
			case <-c.in.wake: // it may be broken
			case <-c.read.channel():
			}
			continue
		}
		if wait.delay > 0 {
			timer := time.NewTimer(wait.delay)
			select {
			case <-timer.C:
			case <-c.in.wake:
			case <-c.read.channel():
			}
			timer.Stop()
			continue
		}
		select {
		case <-c.in.wake:
		case <-c.read.channel():
		}
	}
}

// waiting says what a reader waits for: that a gate opens, that a time passes, or, if both fields
// are zero, more data.
type waiting struct {
	opened <-chan struct{}
	delay  time.Duration
}

// readArrived copies the bytes that have arrived to p. If there are none, it returns the event to
// wait for.
func (c *conn) readArrived(p []byte) (int, waiting, error) {
	s := c.in
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return 0, waiting{}, s.broken
	}
	reset, arrived := c.resetLocked()
	if arrived {
		s.broken = errReset
		return 0, waiting{}, s.broken
	}
	if len(s.chunks) == 0 && s.ended == nil {
		return 0, reset, nil
	}
	if opened := c.stack.network.shut([]link{c.peer.outgoing()}); opened != nil {
		return 0, waiting{opened: opened}, nil
	}
	n, now := 0, time.Now()
	for len(s.chunks) > 0 && n < len(p) {
		first := &s.chunks[0]
		if delay := first.at.Sub(now); delay > 0 {
			if n == 0 {
				return 0, waiting{delay: delay}, nil
			}
			return n, waiting{}, nil
		}
		copied := copy(p[n:], first.data)
		n += copied
		if first.data = first.data[copied:]; len(first.data) == 0 {
			first.data = nil
			s.chunks = s.chunks[1:]
		}
	}
	if n == 0 && len(s.chunks) == 0 && len(p) > 0 {
		if delay := s.endsAt.Sub(now); delay > 0 {
			return 0, waiting{delay: delay}, nil
		}
		return 0, waiting{}, s.ended
	}
	return n, waiting{}, nil
}

// abort ends this side at once.
func (c *conn) abort(err error) {
	c.mu.Lock()
	if c.aborted == nil {
		c.aborted = err
	}
	c.mu.Unlock()
	c.in.breakOff(err)
	c.stack.untrack(c)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.aborted == nil {
		c.aborted = net.ErrClosed
	}
	c.mu.Unlock()
	unread := c.in.breakOff(net.ErrClosed)
	c.stack.mu.Lock()
	dead := c.stack.dead
	c.stack.mu.Unlock()
	if !dead { // a machine without power sends no FIN
		c.out.end(io.EOF, c.arrival())
		if !unread.IsZero() {
			// data for a closed end is answered with a reset, also if it had arrived before
			c.out.reset(c.arrival().Add(max(0, time.Until(unread))))
		}
	}
	c.stack.untrack(c)
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return address(c.outgoing().from) }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return address(c.outgoing().to) }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.read.set(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.read.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDeadline = t
	return nil
}

// deadline is a read deadline, which may be moved. Its channel is closed once it has passed.
type deadline struct {
	mu      schedule.Mutex
	at      time.Time
	timer   *time.Timer
	expired chan struct{}
}

func newDeadline() *deadline { return &deadline{expired: make(chan struct{})} }

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	select {
	case <-d.expired:
		d.expired = make(chan struct{})
	default:
	}
	d.at = t
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.expired)
		return
	}
	expired := d.expired
	d.timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.expired == expired && !d.at.IsZero() && !time.Now().Before(d.at) {
			select {
			case <-expired:
			default:
				close(expired)
			}
		}
	})
}

func (d *deadline) passed() bool {
	select {
	case <-d.channel():
		return true
	default:
		return false
	}
}

func (d *deadline) channel() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expired
}
