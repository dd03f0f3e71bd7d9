package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/wire"
)

// Config configures an Outbox. All numbers are positive.
type Config struct {
	Cluster     string // prefix of the client ids
	Connections int    // publishing connections
	// MaxNotifications bounds the notifications that wait on one publishing connection; beyond it
	// the oldest are given up.
	MaxNotifications int
	// bounds the total size of their keys and values; a single larger notification is kept
	MaxNotificationBytes int
}

// Environment is all that an Outbox touches outside of its own memory. The functions are safe for
// concurrent use.
type Environment struct {
	// Connect connects to the broker under a client id, within a bounded time.
	Connect func(ctx context.Context, clientID string) (*mqttconn.Publisher, error)
	// Confirm returns nil if this node still led at some moment after Confirm was called.
	Confirm func(ctx context.Context) error
	// Backoff returns the delay between attempts to connect.
	Backoff func() *backoff.Backoff
	// SessionUpSince reports whether the node's own session has been up without interruption since
	// a moment.
	SessionUpSince func(moment time.Time) bool
	// TrustedIdentity reports whether the broker vouches for client ids.
	TrustedIdentity func() bool
	Log             *slog.Logger
	Metrics         *Metrics
}

// Handler is told what became of each output. Several goroutines call its methods, without holding
// locks.
type Handler interface {
	// Published is called when the broker has sent the PUBACK of an output, whatever its reason
	// code, or the output has expired, is too large, or was abandoned. It is not called for the
	// outputs that Connections.Send returns.
	Published(o *Output)
	// NoSubscriber is called when the PUBACK of a notification says that there is no matching
	// subscriber.
	NoSubscriber(o *Output)
	// Kick is called for the request of each abandoned reply, to disconnect the client. A reply is
	// abandoned if the broker ended connections on it, or on others to the same client.
	Kick(r *wire.Request)
}

// Outbox opens the publishing connections of each leadership, and watches them. It lives as long as
// the node. All methods are safe for concurrent use.
type Outbox struct {
	config    Config
	env       Environment
	penalties penalties
	loop      takeoverLoop

	mu          sync.Mutex
	connections *Connections // of the current leadership; nil without one
}

// New returns an outbox without connections.
func New(config Config, env Environment) *Outbox {
	o := &Outbox{config: config, env: env}
	o.penalties.trusted = env.TrustedIdentity
	return o
}

// Connect connects with the client ids that all nodes share, so that the broker disconnects an
// earlier leader (session takeover). An earlier leader that was paused cannot publish an old
// notification after the new leader has published a newer one. Connect tries until it succeeds or
// the context ends. The error is the context's cause. The caller closes the connections before it
// calls Connect again.
func (o *Outbox) Connect(ctx context.Context, handler Handler) (*Connections, error) {
	c := o.newConnections(handler)
	o.setConnections(c)
	for delay := o.env.Backoff(); ; {
		publishers, err := c.connect(ctx)
		if err == nil {
			c.start(ctx, publishers)
			return c, nil
		}
		if ctx.Err() != nil {
			c.Close()
			return nil, context.Cause(ctx)
		}
		o.env.Log.Warn("taking over the publishing connections failed, will retry", "error", err)
		delay.Wait(ctx)
	}
}

func (o *Outbox) newConnections(handler Handler) *Connections {
	c := &Connections{
		env: &o.env, penalties: &o.penalties, stop: func() {},
		closed: func() { o.setConnections(nil) },
	}
	now := time.Now()
	for i := range o.config.Connections {
		c.all = append(c.all, &connection{
			config: &o.config, env: &o.env, penalties: &o.penalties, created: now, onLost: o.lost,
			handler: handler, clientID: o.config.clientID(i),
			queue: newQueue(o.config.MaxNotifications, o.config.MaxNotificationBytes,
				o.penalties.key), notified: make(map[string]struct{}),
		})
		c.all[i].downSince.Store(c.all[i].sinceCreated(now))
	}
	return c
}

// clientID returns the client id of a publishing connection. It is the same on every node, so that
// a new leader takes the connection over from the old one.
func (c *Config) clientID(number int) string {
	return fmt.Sprintf("%s-out-%d", c.Cluster, number)
}

func (o *Outbox) setConnections(c *Connections) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connections = c
}

// Down returns how long the longest outage of a publishing connection has lasted. It is 0 while all
// are up, and while the node does not lead.
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

// InTakeoverLoop reports whether a takeover loop was logged within the last loopWarningInterval:
// two clients probably take the publishing connections over from each other again and again.
func (o *Outbox) InTakeoverLoop() bool { return o.loop.detectedRecently(time.Now()) }

// lost counts a lost connection, after the next one is up. A loss counts for the takeover loop if
// the connection was up for at most maxLoopUptime and the node's own session stayed up, which shows
// that the broker was reachable. The reason code of a DISCONNECT does not matter.
func (o *Outbox) lost(connectedAt time.Time, uptime time.Duration) {
	if uptime > maxLoopUptime || !o.env.SessionUpSince(connectedAt) ||
		!o.loop.recordLoss(time.Now()) {
		return
	}
	o.env.Metrics.takeoverLoops.Inc()
	o.env.Log.Error("publishing connections are lost again and again: another cluster with the same cluster.name may use this broker (give each cluster its own name), or the broker ends the connections",
		"cluster", o.config.Cluster)
}
