package outbox

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what an Outbox does. The labels never come from a client's input.
type Metrics struct {
	notifications *prometheus.CounterVec // result
	losses        prometheus.Counter
	abandoned     *prometheus.CounterVec // kind
	takeoverLoops prometheus.Counter
	// repliesRefused counts replies that the broker refused by their PUBACK.
	repliesRefused prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		notifications: prometheus.NewCounterVec(
			prometheus.CounterOpts{
				Name: "holdfast_notifications_total",
				Help: "Notifications that ended on a publishing connection, by result.",
			},
			[]string{"result"}),
		losses: prometheus.NewCounter(
			prometheus.CounterOpts{
				Name: "holdfast_publish_losses_total",
				Help: "How often a publishing connection was lost.",
			}),
		abandoned: prometheus.NewCounterVec(
			prometheus.CounterOpts{
				Name: "holdfast_publish_abandoned_total",
				Help: "Replies and notifications that were dropped: the broker ended connections on them, their client has a penalty, or they exceed the packet limit.",
			}, []string{"kind"}),
		takeoverLoops: prometheus.NewCounter(
			prometheus.CounterOpts{
				Name: "holdfast_publish_takeover_loops_total",
				Help: "Warnings of a takeover loop of the publishing connections, at most one in 10 minutes.",
			}),
	}
	m.repliesRefused = prometheus.NewCounter(
		prometheus.CounterOpts{
			Name: "holdfast_replies_refused_total",
			Help: "Replies that the broker refused, by its access rules as a rule: their clients get no answer.",
		})
	registry.MustRegister(m.notifications, m.losses, m.abandoned, m.takeoverLoops, m.repliesRefused)
	// Each series is made at 0, so that increase() counts its first event.
	for _, result := range []string{
		"published", "expired", "given_up", "no_subscriber",
		"refused",
	} {
		m.notifications.WithLabelValues(result)
	}
	for _, kind := range []string{"reply", "notification"} {
		m.abandoned.WithLabelValues(kind)
	}
	return m
}
