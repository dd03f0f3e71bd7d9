package session

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/wire"
)

// MaxPacket is the size in bytes of the largest packet that a node accepts from the broker. The
// CONNECT packet tells it to the broker. It is above wire.MaxPayload, so that a request just over
// that still arrives and is answered with an error.
const MaxPacket = wire.MaxPayload + 4<<20

// SilenceLimit is how long the broker may say nothing, not even a probe, before this node counts as
// cut off from it.
const SilenceLimit = 2 * time.Second

// Config configures sessions. All fields must be set.
type Config struct {
	Cluster, Node string // prefixes of the MQTT client ids
	// SessionExpiry is how long the broker keeps the cluster's session without a connection.
	SessionExpiry time.Duration
	// ProbeInterval is how often a node sends itself a message through the broker.
	ProbeInterval time.Duration
}

// OwnClientID returns the MQTT client id of the node's own session.
func (c *Config) OwnClientID() string { return c.Cluster + "-" + c.Node + "-in" }

// ClusterClientID returns the MQTT client id of the cluster's session.
func (c *Config) ClusterClientID() string { return c.Cluster + "-ingest" }

// Environment is all that sessions touch outside of their own memory. The functions are safe for
// concurrent use.
type Environment struct {
	Login  *mqttconn.Login
	Random func() uint64
	// Backoff returns the delay between attempts to connect.
	Backoff func() *backoff.Backoff
	Log     *slog.Logger
	Metrics *Metrics
}

// Log is the log of the cluster, as the session uses it. It is safe for concurrent use.
type Log interface {
	// HorizonAge returns how long ago the horizon in the log was: the broker received after it all
	// that it has not seen acknowledged. It is measured by cluster time, which stands still while
	// no node leads.
	HorizonAge() time.Duration
	// SetHorizon moves the horizon to an age ago, with the next entry of the log. It never goes
	// back.
	SetHorizon(age time.Duration)
}

// Arrival says when a message came.
type Arrival struct {
	At            time.Time // when it was read
	ReceivedAfter time.Time // the broker received it after this moment, which may be long before
	// SentAfter is a moment after which the broker sent it, with the message expiry that was left
	// then. It may have waited in the socket since: a node can be stopped for minutes.
	SentAfter time.Time
}

// Handler takes what the cluster's session brings. All methods are safe for concurrent use.
type Handler interface {
	// Receive takes a message of the invoke topic. done acknowledges it to the broker, and may be
	// called later or never. PUBACKs are sent in order: until done is called, no later message of
	// the connection is acknowledged. Receive may block: then nothing more is read from the broker.
	Receive(ctx context.Context, message mqttconn.Message, arrival Arrival, done func())
	// Blocked reports whether Receive blocks.
	Blocked() bool
	// Flush is called when Receive has got everything that has come so far.
	Flush()
	// CoalescingDelay returns for how long messages may gather in the socket before they are read.
	CoalescingDelay() time.Duration
}

// Metrics counts what sessions do.
type Metrics struct {
	connected prometheus.Gauge
	losses    prometheus.Counter
	taken     prometheus.Counter
	probe     prometheus.Histogram
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_session_connected",
			Help: "1 while this node's own session with the broker is up, else 0.",
		}),
		losses: prometheus.NewCounter(
			prometheus.CounterOpts{
				Name: "holdfast_session_losses_total",
				Help: "How often a session with the broker was lost.",
			}),
		taken: prometheus.NewCounter(
			prometheus.CounterOpts{
				Name: "holdfast_session_taken_over_total",
				Help: "How often another client took over this node's own session.",
			}),
		probe: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "holdfast_broker_probe_seconds",
			Help:    "Round trip of the probe through the broker.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 2, 18),
		}),
	}
	registry.MustRegister(m.connected, m.losses, m.taken, m.probe)
	return m
}
