package publish

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/wire"
)

// Config bounds an Outbox. All fields are positive.
type Config struct {
	Cluster     string // prefix of the client ids
	Connections int    // publishing connections
	// Notifications bounds the notifications that wait on one publishing connection; beyond it the oldest are given up.
	Notifications int
	Bytes         int           // of their keys and values
	BackoffMin    time.Duration // between attempts to connect
	BackoffMax    time.Duration
}

// World is all that an Outbox touches outside of its own memory. The functions are safe for concurrent use.
type World struct {
	// Connect connects to the broker under a client id, within a bounded time.
	Connect func(ctx context.Context, clientID string) (*mqttconn.Publisher, error)
	// Confirm returns nil when this node led at some moment after the call.
	Confirm func(ctx context.Context) error
	// Pause waits for about a time, or until the context ends.
	Pause func(ctx context.Context, d time.Duration)
	// SessionUpSince reports whether the node's own session with the broker is up, and has been since a moment.
	SessionUpSince func(moment time.Time) bool
	// AwaitSession waits until the node's own session is known to have been up at a moment or after it. It waits for a bounded time.
	AwaitSession func(ctx context.Context, moment time.Time)
	// TrustedIdentity reports whether the broker vouches for client ids.
	TrustedIdentity func() bool
	Log             *slog.Logger
	Metrics         *Metrics
}

// Handler is told what becomes of outputs. Its methods are called by several goroutines, and without locks.
type Handler interface {
	// Published follows when the broker has an output, or the output was given up.
	Published(o *Output)
	// NoSubscriber follows when the broker had no subscriber for a notification.
	NoSubscriber(o *Output)
	// Kick follows when the broker ends connections on the reply to a request.
	Kick(r *wire.Request)
}

// Outbox publishes what a node sends while it leads. It lives as long as the node, and has Connections while the node leads. All methods are safe for
// concurrent use.
type Outbox struct {
	config    Config
	world     World
	penalties penalties
	loop      takeoverLoop

	mu          sync.Mutex
	connections *Connections // of the leadership, if there is one
}

// NewOutbox returns an outbox without connections.
func NewOutbox(config Config, world World) *Outbox {
	o := &Outbox{config: config, world: world}
	o.penalties.trusted = world.TrustedIdentity
	return o
}

// TakeOver connects under the client ids that all nodes share, so that the broker closes the connections of an earlier leader: one that was paused
// cannot slip an old notification behind a new one. It tries until that succeeded or the context ends; then the error is the context's cause.
// The caller closes the connections, and does so before it takes over again.
func (o *Outbox) TakeOver(ctx context.Context, handler Handler) (*Connections, error) {
	c := o.newConnections(handler)
	o.setConnections(c)
	for delay := o.config.BackoffMin; ; delay = min(2*delay, o.config.BackoffMax) {
		publishers, err := c.connect(ctx)
		if err == nil {
			c.start(ctx, publishers)
			return c, nil
		}
		if ctx.Err() != nil {
			c.Close()
			return nil, context.Cause(ctx)
		}
		o.world.Log.Warn("the publishing connections are not up", "error", err)
		o.world.Pause(ctx, delay)
	}
}

func (o *Outbox) newConnections(handler Handler) *Connections {
	c := &Connections{world: &o.world, penalties: &o.penalties, stop: func() {}, closed: func() { o.setConnections(nil) }}
	for i := range o.config.Connections {
		c.all = append(c.all, &connection{
			config: &o.config, world: &o.world, penalties: &o.penalties, lost: o.lost, handler: handler, clientID: o.config.clientID(i),
			queue: newQueue(o.config.Notifications, o.config.Bytes, o.penalties.culprit), notified: make(map[string]struct{}),
		})
		c.all[i].downSince.Store(time.Now().UnixMilli())
	}
	return c
}

// clientID returns the client id of a publishing connection. It is the same on every node, so that a new leader takes the connection over
// from the old one.
func (c *Config) clientID(number int) string {
	return fmt.Sprintf("%s-out-%d", c.Cluster, number)
}

func (o *Outbox) setConnections(c *Connections) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connections = c
}

// Down returns for how long a publishing connection has been down. It is 0 while all are up, and while the node does not lead.
func (o *Outbox) Down(now time.Time) (longest time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.connections == nil {
		return 0
	}
	for _, connection := range o.connections.all {
		longest = max(longest, connection.down(now))
	}
	return longest
}

// InTakeoverLoop reports whether another client lately took over the publishing connections again and again.
func (o *Outbox) InTakeoverLoop() bool { return o.loop.lately(time.Now()) }

// lost notes a lost connection that began at a time and was up for a time. It is called when the connection is up again. A loss counts for the
// takeover loop if the connection was short and the node's own session was up throughout: then the broker was not the reason.
func (o *Outbox) lost(began time.Time, lived time.Duration) {
	if lived > loopConnection || !o.world.SessionUpSince(began) || !o.loop.lost(time.Now()) {
		return
	}
	o.world.Metrics.contested.Inc()
	o.world.Log.Error("the publishing connections are taken over again and again: does another cluster of this name use the same broker? give each its own cluster.name",
		"cluster", o.config.Cluster)
}
