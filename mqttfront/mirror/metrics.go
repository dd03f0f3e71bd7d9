package mirror

import "github.com/prometheus/client_golang/prometheus"

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
