package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/semaphore"

	"holdfast/cluster/peer"
)

// callEnvironment is the part of the Transport that calls use.
type callEnvironment struct {
	dial     func(id raft.ServerID, address string) (net.Conn, error)
	start    func(work func()) // runs work in a goroutine that Transport.Close waits for
	patience time.Duration     // how long a connection may be silent while a call waits
	// onSilent is called after a call's deadline has passed and its connection was closed, because
	// nothing had arrived for patience.
	onSilent func(member raft.ServerAddress)
}

// callClients are the clients for calls, one for each member.
type callClients struct {
	env callEnvironment

	mu     sync.Mutex
	byPeer map[raft.ServerAddress]*callClient // by id@address (joinTarget)
	closed bool
}

func (c *callClients) get(id raft.ServerID, address string) (*callClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	key := joinTarget(id, raft.ServerAddress(address))
	found := c.byPeer[key]
	if found == nil {
		c.removeUnusedLocked()
		found = &callClient{env: &c.env, id: id, address: address}
		if c.byPeer == nil {
			c.byPeer = make(map[raft.ServerAddress]*callClient)
		}
		c.byPeer[key] = found
	}
	found.calls++
	return found, nil
}

// release undoes one get.
func (c *callClients) release(client *callClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	client.calls--
}

// removeUnusedLocked removes each idle client without a call under way. Otherwise the clients of
// removed members, and of addresses that joining nodes named, would stay.
func (c *callClients) removeUnusedLocked() {
	now := time.Now()
	maps.DeleteFunc(c.byPeer, func(_ raft.ServerAddress,
		client *callClient,
	) bool {
		return client.calls == 0 && client.isIdle(now)
	})
}

func (c *callClients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, client := range c.byPeer {
		client.close()
	}
}

// Call implements peer.Client. If the member has no id, Call reaches the process that listens at
// the address.
func (t *Transport) Call(ctx context.Context, member raft.Server, method peer.Method,
	request []byte,
) ([]byte, error) {
	client, err := t.calls.get(member.ID, string(member.Address))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", peer.ErrUnreachable, err)
	}
	defer t.calls.release(client)
	return client.call(ctx, method, request)
}

// callClient calls one member over one connection, which it opens when there is none.
type callClient struct {
	env     *callEnvironment
	id      raft.ServerID
	address string
	calls   int // number of calls under way; guarded by callClients.mu

	mu         sync.Mutex
	current    *connection
	dialing    chan struct{} // closed when the attempt under way has ended; nil when there is none
	dialErr    error         // error of the last attempt
	retryAt    time.Time     // no attempt starts before this time
	retryDelay time.Duration
	closed     bool
}

// The delay after a failed attempt to connect starts at retryMin, and doubles with each failure up
// to retryMax.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 500 * time.Millisecond
)

// connection is one connection with the calls that wait for answers.
type connection struct {
	conn net.Conn
	// of size 1, held while a frame is written: a mutex whose Lock a context can end
	writing *semaphore.Weighted

	mu           sync.Mutex
	lastID       uint64 // number of the last call
	waiting      map[uint64]chan answer
	lastReceived time.Time // when the last bytes arrived, also those of an unfinished answer
	// when the silence began: the send time of the first call that was given up without an answer.
	// Bytes that arrive later end the silence
	silentSince time.Time
	endErr      error // why the connection ended; nil while it is open
}

func newConnection(conn net.Conn) *connection {
	return &connection{
		conn: conn, writing: semaphore.NewWeighted(1),
		waiting: make(map[uint64]chan answer), lastReceived: time.Now(),
	}
}

type answer struct {
	body []byte
	err  error
}

// connect returns the open connection, or opens one. Concurrent callers share one attempt.
func (c *callClient) connect(ctx context.Context) (*connection, error) {
	c.mu.Lock()
	for c.current == nil {
		if c.closed {
			c.mu.Unlock()
			return nil, net.ErrClosed
		}
		if c.dialing == nil && time.Now().Before(c.retryAt) {
			err := c.dialErr
			c.mu.Unlock()
			return nil, err
		}
		if c.dialing == nil {
			c.dialing = make(chan struct{})
			c.env.start(c.dialAndRead)
		}
		dialing := c.dialing
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-dialing:
		}
		c.mu.Lock()
		if c.current == nil && c.dialErr != nil {
			err := c.dialErr
			c.mu.Unlock()
			return nil, err
		}
	}
	current := c.current
	c.mu.Unlock()
	return current, nil
}

// dialAndRead opens a connection and reads frames until it ends.
func (c *callClient) dialAndRead() {
	conn, err := c.env.dial(c.id, c.address)
	c.mu.Lock()
	close(c.dialing)
	c.dialing, c.dialErr = nil, err
	if err == nil && c.closed {
		_ = conn.Close() // nothing was sent on it
		err = net.ErrClosed
	}
	if err != nil {
		c.retryDelay = min(max(2*c.retryDelay, retryMin), retryMax)
		c.retryAt = time.Now().Add(c.retryDelay)
		c.mu.Unlock()
		return
	}
	c.retryDelay = 0
	opened := newConnection(conn)
	c.current = opened
	c.mu.Unlock()
	err = opened.read()
	c.drop(opened, err)
}

// drop ends a connection: the next call opens another.
func (c *callClient) drop(gone *connection, err error) {
	c.mu.Lock()
	if c.current == gone {
		c.current = nil
	}
	c.mu.Unlock()
	gone.end(err)
}

// isIdle reports whether there is no connection, no attempt to open one, and no delay left before
// the next attempt.
func (c *callClient) isIdle(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current == nil && c.dialing == nil && now.After(c.retryAt)
}

func (c *callClient) close() {
	c.mu.Lock()
	c.closed = true
	current := c.current
	c.mu.Unlock()
	if current != nil {
		current.end(net.ErrClosed)
	}
}

func (c *callClient) call(ctx context.Context, method peer.Method, request []byte) ([]byte, error) {
	if len(request)+frameHeader > maxFrame {
		return nil, errTooLarge
	}
	connection, err := c.connect(ctx)
	if err != nil {
		if !errors.Is(err, peer.ErrUnreachable) {
			err = fmt.Errorf("%w: %w", peer.ErrUnreachable, err)
		}
		return nil, err
	}
	sentAt := time.Now()
	number, answers, err := connection.send(ctx, method, request)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) { // nothing was written
		return nil, fmt.Errorf("%w: %w", peer.ErrUnreachable, err)
	}
	if err != nil {
		c.drop(connection, err)
		return nil, fmt.Errorf("%w: %w", peer.ErrUnreachable, err)
	}
	select {
	case answer := <-answers:
		return answer.body, answer.err
	case <-ctx.Done():
		if connection.forget(number, sentAt, c.env.patience) &&
			errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.drop(connection, errSilent)
			c.env.onSilent(joinTarget(c.id, raft.ServerAddress(c.address)))
		}
		return nil, fmt.Errorf("%w: %w", peer.ErrUnreachable, ctx.Err())
	}
}

// errSilent says that nothing arrived on a connection for too long.
var errSilent = errors.New("nothing arrived from the member in time")

// minWriteTime is the minimum time limit for writing a frame, even if the call's deadline is
// sooner: a frame that is written in part ends the connection for all calls.
const minWriteTime = 100 * time.Millisecond

// send writes a request. It returns the number of the call and the channel for its answer. The
// error wraps that of the context if nothing was written because the context ended.
func (c *connection) send(ctx context.Context, method peer.Method, request []byte) (uint64,
	<-chan answer, error,
) {
	if err := c.writing.Acquire(ctx, 1); err != nil {
		return 0, nil, err
	}
	defer c.writing.Release(1)
	answers := make(chan answer, 1)
	c.mu.Lock()
	if c.endErr != nil {
		err := c.endErr
		c.mu.Unlock()
		return 0, nil, err
	}
	c.lastID++
	number := c.lastID
	c.waiting[number] = answers
	c.mu.Unlock()
	now := time.Now()
	deadline := now.Add(writeTimeout)
	if ends, ok := ctx.Deadline(); ok && ends.Before(deadline) {
		deadline = ends
		if least := now.Add(minWriteTime); deadline.Before(least) {
			deadline = least
		}
	}
	_ = c.conn.SetWriteDeadline(deadline) // an error shows at the write
	return number, answers, writeFrame(c.conn, byte(method), number, request)
}

// minPatience is the lower bound of Config.Patience.
const minPatience = 900 * time.Millisecond

// forget removes a call whose context has ended. It reports whether the connection is silent and
// must be closed: silentSince is more than patience ago, and nothing has arrived since then.
func (c *connection) forget(number uint64, sentAt time.Time, patience time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silentSince.IsZero() || c.lastReceived.After(c.silentSince) {
		c.silentSince = sentAt
	}
	delete(c.waiting, number)
	return c.lastReceived.Before(c.silentSince) && time.Since(c.silentSince) > patience
}

func (c *connection) read() error {
	reader := bufio.NewReaderSize(timestampingReader{c}, 16<<10)
	for {
		code, number, body, err := readFrame(reader, maxFrame)
		if err != nil {
			return err
		}
		c.mu.Lock()
		answers := c.waiting[number]
		delete(c.waiting, number)
		c.mu.Unlock()
		switch {
		case answers == nil: // the call was given up
		case code == codeError:
			answers <- answer{err: peer.DecodeError(body)}
		default:
			answers <- answer{body: body}
		}
	}
}

// timestampingReader reads from the connection and notes when bytes arrive.
type timestampingReader struct{ *connection }

// Read implements io.Reader.
func (r timestampingReader) Read(p []byte) (int, error) {
	n, err := r.conn.Read(p)
	if n > 0 {
		r.mu.Lock()
		r.lastReceived = time.Now()
		r.mu.Unlock()
	}
	return n, err
}

// end closes the connection and fails the calls that wait.
func (c *connection) end(err error) {
	_ = c.conn.Close() // err says why the connection ends
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endErr == nil {
		c.endErr = err
	}
	for number, answers := range c.waiting {
		answers <- answer{err: fmt.Errorf("%w: %w", peer.ErrUnreachable, err)}
		delete(c.waiting, number)
	}
}

var _ peer.Client = (*Transport)(nil)
