package publish

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what an Outbox does. The labels never come from a client's input.
type Metrics struct {
	notifications *prometheus.CounterVec // result
	losses        prometheus.Counter
	abandoned     *prometheus.CounterVec // kind
	contested     prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		notifications: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_notifications_total", Help: "Notifications by what became of them."}, []string{"result"}),
		losses:        prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_publish_losses_total", Help: "How often a publishing connection was lost."}),
		abandoned:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_publish_abandoned_total", Help: "Replies and notifications that no connection survived, or that do not fit into a packet."}, []string{"kind"}),
		contested:     prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_publish_contested_total", Help: "How often the publishing connections were found to be contested by another cluster."}),
	}
	registry.MustRegister(m.notifications, m.losses, m.abandoned, m.contested)
	// Series that are there from the start, so that the first event of a kind is a change and not a beginning.
	for _, result := range []string{"published", "expired", "given_up", "no_subscriber", "refused"} {
		m.notifications.WithLabelValues(result)
	}
	for _, kind := range []string{"reply", "notification"} {
		m.abandoned.WithLabelValues(kind)
	}
	return m
}
