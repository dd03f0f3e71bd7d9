package mirror

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what a Mirror does. The labels never come from a client's input.
type Metrics struct {
	published   *prometheus.CounterVec // result
	corrections *prometheus.CounterVec // reason
	keys        prometheus.Gauge
	unshown     prometheus.Gauge
	lagTopics   prometheus.Gauge
	lagSeconds  prometheus.Gauge
	faulty      prometheus.Gauge
}

// The results of publishing a topic.
const (
	resultSet      = "set"
	resultCleared  = "cleared"
	resultRefused  = "refused"
	resultTooLarge = "too_large"
	resultSkipped  = "skipped"
)

// Why a topic is published although its key has not changed.
const (
	reasonMissing = "missing"
	reasonStale   = "stale"
)

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		published: prometheus.NewCounterVec(
			prometheus.CounterOpts{
				Name: "holdfast_mirror_topics_total",
				Help: "Topics of mirrors that the leader brought in line, by result: set, cleared, refused by the broker, too_large for it and cleared instead, or skipped because the key makes no valid topic or has no mirror any more.",
			}, []string{"result"}),
		corrections: prometheus.NewCounterVec(
			prometheus.CounterOpts{
				Name: "holdfast_mirror_corrections_total",
				Help: "Topics of mirrors that were published although their key had not changed: the broker's retained message was missing or stale.",
			}, []string{"reason"}),
		keys: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_mirror_keys",
			Help: "Keys with a mirror when the leader last compared the broker with the state; 0 on other nodes.",
		}),
		unshown: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_mirror_unshown_keys",
			Help: "Of holdfast_mirror_keys, those that are not shown because they make no valid topic.",
		}),
		lagTopics: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_mirror_lag_topics",
			Help: "Topics of mirrors that are not known to be as in the state; 0 on other nodes than the leader.",
		}),
		lagSeconds: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_mirror_lag_seconds",
			Help: "How long ago the oldest change of a mirrored key was that the broker has not acknowledged, or, if that is longer ago, since when the broker is not known to have been compared with the state; 0 on other nodes than the leader.",
		}),
		faulty: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_mirror_faulty_topics",
			Help: "Topics of mirrors that the broker refuses, or acknowledges and does not retain, and one more while it drops retained messages; 0 on other nodes than the leader.",
		}),
	}
	registry.MustRegister(m.published, m.corrections, m.keys, m.unshown, m.lagTopics, m.lagSeconds,
		m.faulty)
	for _, result := range []string{
		resultSet, resultCleared, resultRefused, resultTooLarge,
		resultSkipped,
	} {
		m.published.WithLabelValues(result) // so that increase() counts the first event
	}
	for _, reason := range []string{reasonMissing, reasonStale} {
		m.corrections.WithLabelValues(reason)
	}
	return m
}

// countPublished counts a topic, by the result of publishing it.
func (m *Metrics) countPublished(result string) { m.published.WithLabelValues(result).Inc() }

func (m *Metrics) set(s Status) {
	m.keys.Set(float64(s.Keys))
	m.unshown.Set(float64(s.Unshown))
	m.lagTopics.Set(float64(s.Topics))
	m.lagSeconds.Set(s.Lag.Seconds())
	faulty := s.Refused + s.Unretained
	if s.Dropped {
		faulty++
	}
	m.faulty.Set(float64(faulty))
}

// Status is what a Mirror is doing.
type Status struct {
	Leading   bool // if false, the fields below are not set
	Connected bool // also true while no mirror is configured
	Comparing bool // the broker's retained messages are being compared with the state, or will be
	Keys      int  // number of keys with a mirror, at the last comparison
	Unshown   int  // number of these keys that are not published, because their topic is invalid
	// number of retained messages that the broker lacked, since this node leads or since the last
	// Resync
	Missing int
	// number of retained messages, in the same time, that differed from the state or belonged to no
	// key
	Stale int
	// Blind says that the broker does not send this node the retained messages of some mirror. If a
	// key was deleted while no node led, or while the leader had no connection for mirrors, its
	// retained message may stay.
	Blind bool
	// Dropped says that the broker dropped some of its retained messages at the last comparison,
	// because it has not enough room to queue them for a client: it is not known whether these are
	// as in the state.
	Dropped    bool
	Unretained int // number of topics whose messages the broker acknowledges but does not retain
	Topics     int // number of topics that are not known to be as in the state
	Refused    int // number of topics that the broker refuses, or on which it ends the connection
	// Lag is the age of the oldest change that the broker has not acknowledged. Refused topics that
	// wait for a retry do not count. Without a connection, and until a comparison has succeeded, it
	// is at least the time since the connection was lost or the comparison became due. Failed
	// attempts do not reset it.
	Lag time.Duration
	// InSync says that the broker has acknowledged all corrections of the last comparison, and all
	// changes that are older than one second.
	InSync bool
	Fault  string // why there is no connection, or why the last comparison failed; empty otherwise
}
