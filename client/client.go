// Package client speaks the state store protocol over MQTT 5: Get, Set, Del, VDel, Txn, Keys,
// Watch, Follow and Lock against a Holdfast cluster, through an MQTT 5 broker.
//
//	store, err := client.Connect(ctx, client.Config{Addresses: []string{"mqtt://broker:1883"}})
//	…
//	defer store.Close()
//	version, err := store.Set(ctx, "line-7/recipe", []byte("steel"))
//	value, version, err := store.Get(ctx, "line-7/recipe")
//
//	lock, err := store.Lock(ctx, "line-7/lock", 10*time.Second)
//	…
//	// refused as soon as another client has the lock
//	_, err = store.Set(ctx, "line-7/speed", []byte("140"), client.Fence(lock.Token()))
//
// A Client keeps one connection and reconnects by itself. A command that is under way when the
// connection is lost is sent again, byte for byte, and takes effect once: the store deduplicates
// it. Only a KEYNOTIFY (it makes or ends a watch) is sent as a new request, with new correlation
// data: the store must execute it again. A command whose answer does not come in time returns
// ErrOutcomeUnknown, or ErrNotExecuted if it was not sent. An error of the store is a *ServerError
// and means that nothing was done.
package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"holdfast/hlc"
	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
)

// Config says where the broker is and who the client is. Only Addresses is needed.
type Config struct {
	Addresses []string // mqtt://host:port or mqtts://host:port, tried in turn
	ClientID  string   // must be unique, and not hold '/', '+', '#' or NUL; empty: a random one
	Username  string
	Password  []byte      // at most 65,535 bytes
	TLS       *tls.Config // for mqtts
	// Dial opens the network connection to host:port, as through a proxy. TLS comes on top of it.
	// Default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// InvokeTopic is where requests are published. Default: the state store's. A stand-in for the
	// store may listen elsewhere.
	InvokeTopic string

	// Timeout is how long a command waits for its answer when its context has no deadline. It also
	// bounds each attempt to reconnect, and each KEYNOTIFY and STOP that the client sends by
	// itself. Default 10 s.
	Timeout time.Duration
	// NoStoreTimeout is for how long a request is sent again while the broker says that nobody
	// receives requests, as just after its restart. Then the error is ErrNoStore. Brokers do not
	// have to say that. Default: until the request's own deadline.
	NoStoreTimeout time.Duration
	// KeepAlive is the MQTT keep-alive time, rounded to whole seconds, at least 1 s and at most
	// 65,535 s. Default 30 s.
	KeepAlive time.Duration
	// WatchBuffer is how many events a Watcher keeps for a receiver that is slow. Default 1024.
	WatchBuffer int
	// WatchRenewal is how often watches are renewed, for a store with the setting watch.ttl, which
	// must be longer. Default 1 min.
	WatchRenewal time.Duration
	// FollowRefresh is the longest time after which a Follower lists and reads all of its keys
	// again, to find changes without a notification. Default 10 min.
	FollowRefresh time.Duration
	Log           *slog.Logger // default: nothing is logged
	// Wall returns the wall clock in milliseconds since the Unix epoch. Default: the machine's.
	Wall func() int64
}

// Client is a connection to the store. It is safe for concurrent use. Commands of one goroutine
// take effect in their order.
type Client struct {
	// Locks are taken in this order: Lock.unlocking, mu, session.mu. None is held during a call of
	// a function of package mqttconn that locks. Follower.mu is never held together with another
	// lock.

	config Config
	dialer *mqttconn.Dialer

	responseTopic string
	nodeID        string          // the node id in this client's timestamps
	running       context.Context // ends when Close is called
	stop          context.CancelFunc
	stopped       chan struct{}

	mu      sync.Mutex
	clock   hlc.Clock
	pending map[string]*call // the calls that wait for an answer, by correlation data
	// the same calls in the order in which they were made; the next session sends them again
	order    []*call
	watchers watchers
	session  *session      // nil while there is no connection
	changed  chan struct{} // closed and replaced when session changes
	failure  error         // why there is no connection
	// turnaround is a moving average of the time from a call's begin to its answer.
	turnaround time.Duration
	answered   bool // the store has answered this client
	closed     bool
}

// Connect tries the brokers in turn, until one accepts. The context, or Config.Timeout if it has no
// deadline, bounds Connect, and not later reconnects.
func Connect(ctx context.Context, config Config) (*Client, error) {
	c := &Client{
		config: config, pending: make(map[string]*call), watchers: newWatchers(),
		changed: make(chan struct{}), stopped: make(chan struct{}),
	}
	if err := c.applyDefaults(); err != nil {
		return nil, err
	}
	session, err := c.connectAny(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c.running, c.stop = context.WithCancel(context.Background())
	c.resume(session)
	go c.keepConnected(c.running, session)
	return c, nil
}

// connectAny makes at most as many attempts as there are addresses, each with a fair share of the
// time. An attempt dials one address after the other until one accepts, and makes the MQTT
// handshake there. If the handshake fails, the next attempt begins with the address after it.
func (c *Client) connectAny(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout(ctx))
	defer cancel()
	var failures []error
	for left := len(c.dialer.Addresses); left > 0; left-- {
		attempt, cancel := context.WithTimeout(ctx, c.timeout(ctx)/time.Duration(left))
		s, err := c.connect(attempt)
		cancel()
		if err == nil {
			return s, nil
		}
		failures = append(failures, err)
		c.dialer.Next()
	}
	return nil, errors.Join(failures...)
}

func (c *Client) applyDefaults() error {
	if c.config.ClientID == "" {
		random := make([]byte, 8)
		_, _ = rand.Read(random) // never fails
		c.config.ClientID = "holdfast-client-" + hex.EncodeToString(random)
	}
	if strings.ContainsAny(c.config.ClientID, "/+#\x00") {
		return fmt.Errorf("client id %q: must not hold '/', '+', '#' or NUL", c.config.ClientID)
	}
	if c.config.InvokeTopic == "" {
		c.config.InvokeTopic = topics.Invoke
	}
	if c.config.Timeout <= 0 {
		c.config.Timeout = 10 * time.Second
	}
	if c.config.KeepAlive <= 0 {
		c.config.KeepAlive = 30 * time.Second
	}
	c.config.KeepAlive = min(max(c.config.KeepAlive.Round(time.Second), time.Second),
		math.MaxUint16*time.Second)
	if c.config.WatchRenewal <= 0 {
		c.config.WatchRenewal = time.Minute
	}
	if c.config.FollowRefresh <= 0 {
		c.config.FollowRefresh = 10 * time.Minute
	}
	if c.config.WatchBuffer <= 0 {
		c.config.WatchBuffer = 1024
	}
	if c.config.Log == nil {
		c.config.Log = slog.New(slog.DiscardHandler)
	}
	if c.config.Wall == nil {
		c.config.Wall = func() int64 { return time.Now().UnixMilli() }
	}
	c.nodeID = c.config.ClientID
	if _, err := hlc.Parse(hlc.Timestamp{NodeID: c.nodeID}.String()); err != nil {
		// a client id may have a ':', or be longer than a node id
		sum := sha256.Sum256([]byte(c.nodeID))
		c.nodeID = hex.EncodeToString(sum[:16])
	}
	c.responseTopic = "clients/" + c.config.ClientID +
		"/services/statestore/_any_/command/invoke/response"
	c.dialer = &mqttconn.Dialer{
		TLS: c.config.TLS, Timeout: c.config.Timeout,
		Network: c.config.Dial,
	}
	for _, text := range c.config.Addresses {
		address, err := mqttconn.ParseAddress(text)
		if err != nil {
			return err
		}
		c.dialer.Addresses = append(c.dialer.Addresses, address)
	}
	if len(c.dialer.Addresses) == 0 {
		return errors.New("no broker address")
	}
	return nil
}

// ID returns the MQTT client id.
func (c *Client) ID() string { return c.config.ClientID }

// Close ends the connection and all watchers. A command that waits for an answer returns ErrClosed
// together with ErrOutcomeUnknown if it was sent, or with ErrNotExecuted if not. When Close
// returns, no goroutine of the connection or of a Watcher runs any more; a Follower's ends soon
// after, and Follower.Close waits for it. Close always returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	<-c.stopped
	return nil
}

// keepConnected runs one session after the other until the client is closed.
func (c *Client) keepConnected(ctx context.Context, s *session) {
	defer close(c.stopped)
	defer c.giveUp()
	delay := backoff.New(minReconnectDelay, maxReconnectDelay, random)
	var reported time.Time // when a failed attempt of this outage was logged last
	short := 0             // sessions in a row that ended soon after they began
	for {
		if s != nil {
			err := s.wait(ctx)
			c.setSession(nil, err)
			s.close()
			if ctx.Err() == nil {
				c.config.Log.Warn("connection lost", "error", err)
			}
			short++
			if time.Since(s.began) > minStableSession {
				// a session that ends sooner counts as an attempt that failed
				delay.Reset()
				short = 0
			}
			if mqttconn.IsTakenOver(err) {
				backoff.Pause(ctx, backoff.Jitter(takenOverDelay, random))
			}
			if short == maxShortSessions && ctx.Err() == nil {
				// not each broker says that a session was taken over
				c.config.Log.Error(
					"the broker ends each connection soon after it began: does another client use the same client id?", "client_id", c.config.ClientID, "error", err)
			}
			s = nil
		} else {
			var err error
			if s, err = c.connectAny(ctx); err == nil {
				c.config.Log.Info("connected again")
				reported = time.Time{}
				c.resume(s)
				continue
			}
			if ctx.Err() == nil && time.Since(reported) >= failureInterval {
				reported = time.Now()
				c.config.Log.Warn("cannot connect: trying again", "error", err)
			}
			c.setSession(nil, err)
		}
		if ctx.Err() != nil {
			return
		}
		delay.Wait(ctx)
	}
}

// The delays between attempts to connect. Jitter shortens each by up to half.
const (
	minReconnectDelay = 50 * time.Millisecond
	// maxReconnectDelay is far below the default Timeout of 10 s: a broker may be down for 8 s
	// while it restarts, and the waiting requests must still be answered in the remaining time.
	maxReconnectDelay = 500 * time.Millisecond
	// takenOverDelay is the delay after a session takeover. Otherwise two clients with one id would
	// end each other's connection all the time.
	takenOverDelay = 5 * time.Second
	// failureInterval is the least time between two log lines about failed attempts of one outage.
	failureInterval = time.Minute
	// minStableSession is how long a session must last so that it does not count as a failed
	// attempt.
	minStableSession = 5 * time.Second
	// maxShortSessions is how many sessions in a row may be shorter before that is logged.
	maxShortSessions = 3
)

func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// giveUp fails all pending calls with ErrClosed and ends all watchers.
func (c *Client) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, waiting := range c.pending {
		outcome := ErrNotExecuted
		if waiting.sent {
			outcome = ErrOutcomeUnknown
		}
		waiting.finish(answer{err: fmt.Errorf("%w: %w", outcome, ErrClosed)})
	}
	c.pending, c.order = map[string]*call{}, nil
	for _, watchers := range c.watchers.bySubject {
		for _, w := range watchers {
			w.endLocked(ErrClosed)
		}
	}
	c.watchers = newWatchers()
	close(c.changed) // wakes the calls that wait in Client.begin for a connection
	c.changed = make(chan struct{})
}

func (c *Client) setSession(s *session, failure error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.failure = s, failure
	close(c.changed)
	c.changed = make(chan struct{})
}

// timestampLocked returns a new reading of the client's clock. c.mu must be held.
func (c *Client) timestampLocked() hlc.Timestamp {
	wall := c.config.Wall()
	if c.clock.Timestamp("").TooFarAhead(wall) {
		// the wall clock was ahead for a while; the store would refuse every SET
		c.clock = hlc.Clock{}
	}
	now := c.clock.Now(wall)
	return now.Timestamp(c.nodeID)
}

// mergeLocked merges a version from the store into the client's clock. It ignores a version that is
// too far ahead of this machine's clock: merging it would make every later request of this client
// fail with ErrTimestampSkew. c.mu must be held.
func (c *Client) mergeLocked(t hlc.Timestamp) {
	if wall := c.config.Wall(); !t.TooFarAhead(wall) {
		c.clock.Receive(t, wall)
	}
}
