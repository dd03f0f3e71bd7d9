package ingest

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/wire"
)

// MaxPacket is the largest packet in bytes that a node accepts from the broker, which is told of it: a request that is just over the
// quota is still answered.
const MaxPacket = wire.MaxPayload + 4<<20

// SilenceLimit is how long the broker may say nothing, not even a probe, before this node counts as cut off from it.
const SilenceLimit = 2 * time.Second

// Config is what sessions need to know. All fields are set.
type Config struct {
	Cluster, Node string // prefixes of the MQTT client ids
	// SessionExpiry is how long the broker keeps a session, and how old a request may be.
	SessionExpiry time.Duration
	// ProbeInterval is how often a node sends itself a message through the broker.
	ProbeInterval time.Duration
	BackoffMin    time.Duration // between attempts to connect
	BackoffMax    time.Duration
}

// ContactStore keeps the moment up to which the ingest session has delivered what the broker received, so that a restarted node
// knows whether it may resume the session. The times are wall-clock times in milliseconds since the Unix epoch; 0 forbids to resume.
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

// Arrival says when a message came. BrokerAfter need not hold for a redelivered message. On the leader's session it is the time of the connection attempt
// until a probe returns, and need not hold for a queued message.
type Arrival struct {
	At          time.Time
	BrokerAfter time.Time // the broker received the message after this moment
	Backlog     bool      // the session lags behind the broker: other nodes have probably handled the message
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
	// CoalescingDelay returns for how long what comes may gather before it is read.
	CoalescingDelay() time.Duration
	// DropSince drops what came after a moment and is not executed yet: it is too old.
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
