package ingest

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/wire"
)

// MaxPacket is the size in bytes of the largest packet that a node accepts from the broker. The CONNECT packet tells it to the broker. It is above
// wire.MaxPayload, so that a request just over that still arrives and is answered with an error.
const MaxPacket = wire.MaxPayload + 4<<20

// SilenceLimit is how long the broker may say nothing, not even a probe, before this node counts as cut off from it.
const SilenceLimit = 2 * time.Second

// Config configures sessions. All fields must be set.
type Config struct {
	Cluster, Node string // prefixes of the MQTT client ids
	// SessionExpiry is how long the broker keeps a session without a connection. It also bounds the age of the requests that are executed.
	SessionExpiry time.Duration
	// ProbeInterval is how often a node sends itself a message through the broker.
	ProbeInterval time.Duration
	BackoffMin    time.Duration // shortest delay between attempts to connect
	BackoffMax    time.Duration // longest delay
}

// NodeClientID returns the MQTT client id of the node's own session.
func (c *Config) NodeClientID() string { return c.Cluster + "-" + c.Node + "-in" }

// ContactStore keeps one moment across restarts: the ingest session has delivered all that the broker received before it. By this moment a restarted node
// decides whether it may resume the session. It is wall-clock time, in milliseconds since the Unix epoch. 0 means that the node must not resume.
type ContactStore interface {
	Load() (wall int64, ok bool)
	Save(wall int64) error
}

// Environment is all that sessions touch outside of their own memory. The functions are safe for concurrent use.
type Environment struct {
	Login   *mqttconn.Login
	Contact ContactStore
	Wall    func() int64 // milliseconds since the Unix epoch
	Random  func() uint64
	// Pause waits for between a half of d and d, or until the context ends.
	Pause   func(ctx context.Context, d time.Duration)
	Log     *slog.Logger
	Metrics *Metrics
}

// Arrival says when a message arrived. BrokerReceivedAfter may be wrong for a redelivered message. On the leader's session it is the time of the connection
// attempt until a probe returns, and may be wrong for a queued message, too.
type Arrival struct {
	At                  time.Time
	BrokerReceivedAfter time.Time // the broker received the message after this moment
	Backlog             bool      // the session lags behind the broker: other nodes have probably handled the message
}

// Handler takes what a session brings. All methods are safe for concurrent use.
type Handler interface {
	// Receive takes a message of the invoke topic. done acknowledges it to the broker, and may be called later or never. PUBACKs are sent in order: until
	// done is called, no later message of the connection is acknowledged. Receive may block: then nothing more is read from the broker.
	Receive(ctx context.Context, message mqttconn.Message, arrival Arrival, done func())
	// Blocked reports whether Receive blocks.
	Blocked() bool
	// Flush is called when Receive has got everything that has come so far.
	Flush()
	// CoalescingDelay returns for how long messages may gather in the socket before they are read.
	CoalescingDelay() time.Duration
	// DropSince drops the requests that arrived after a moment and are not executed yet: they may be too old.
	DropSince(moment time.Time)
	// SessionBegun is called when the broker has begun a new session, which does not deliver what it received before.
	SessionBegun()
}

// Metrics counts what sessions do.
type Metrics struct {
	connected prometheus.Gauge
	losses    prometheus.Counter
	taken     prometheus.Counter
	probe     prometheus.Histogram
	stale     prometheus.Counter
}

// NewMetrics registers the metrics. stale counts requests that are dropped because they are too old.
func NewMetrics(registry prometheus.Registerer, stale prometheus.Counter) *Metrics {
	m := &Metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_ingest_connected", Help: "1 while the ingest session is up, else 0."}),
		losses:    prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_ingest_losses_total", Help: "How often the ingest session was lost."}),
		taken:     prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_ingest_taken_over_total", Help: "How often another client took over this node's session."}),
		probe: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_broker_probe_seconds", Help: "Round trip of the probe through the broker.", Buckets: prometheus.ExponentialBuckets(0.00005, 2, 18),
		}),
		stale: stale,
	}
	registry.MustRegister(m.connected, m.losses, m.taken, m.probe)
	return m
}
