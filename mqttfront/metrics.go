package mqttfront

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/publish"
	"holdfast/mqttfront/wire"
)

// Metrics counts what a Front does. The labels never come from a client's input.
type Metrics struct {
	Ingest  *ingest.Metrics
	Publish *publish.Metrics

	requests    *prometheus.CounterVec // command, outcome
	ignored     *prometheus.CounterVec // reason
	stages      *prometheus.HistogramVec
	held        prometheus.Gauge
	heldDropped *prometheus.CounterVec // reason
	refused     *prometheus.CounterVec // reason
	subscribed  *prometheus.CounterVec // result
	kicked      *prometheus.CounterVec // result
	unreported  prometheus.Counter
	takenUp     prometheus.Counter
	disconnects *prometheus.CounterVec // result

	withoutSession prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	buckets := prometheus.ExponentialBuckets(0.00005, 2, 18)
	m := &Metrics{
		Publish:  publish.NewMetrics(registry),
		requests: vector("holdfast_requests_total", "Requests answered by this node.", "command", "outcome"),
		ignored:  vector("holdfast_requests_ignored_total", "Messages on the invoke topic that are no requests, or too late.", "reason"),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "holdfast_request_seconds", Help: "Time of requests by stage: queue (until taken up), commit (until the outcome is known), publish (until the broker has the reply).",
			Buckets: buckets,
		}, []string{"stage"}),
		held:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_held_requests", Help: "Requests that this node keeps until they are known to be answered."}),
		heldDropped: vector("holdfast_held_requests_dropped_total", "Requests given up unanswered by this node.", "reason"),
		refused:     vector("holdfast_requests_refused_total", "Requests answered that the service is overloaded: they waited too long (age), or their client has too many under way (client_share).", "reason"),
		subscribed:  vector("holdfast_notification_subscriptions_total", "Clients that watch and were looked at whether they subscribe to their notifications: made for them, present, failed, unsupported by the driver's settings, or dropped for lack of room.", "result"),
		kicked:      vector("holdfast_clients_sent_away_total", "Clients that were to be disconnected for an invalid response topic.", "result"),
		unreported:  prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_reports_dropped_total", Help: "Answered requests that the other nodes were not told of: they hold them until they expire."}),
		takenUp:     prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_held_requests_taken_up_total", Help: "Requests that only other nodes held when this one led."}),
	}
	m.withoutSession = prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_publish_without_session_total", Help: "How often a leader published on a new connection before its own session was up, because that took too long."})
	m.Ingest = ingest.NewMetrics(registry, m.heldDropped.WithLabelValues("stale"))
	m.disconnects = vector("holdfast_departures_total", "Ends of clients that the broker told of: logged, or no_watches where there was nothing to end; dropped by a node that does not lead, for want of room.", "result")
	registry.MustRegister(m.disconnects, m.refused, m.subscribed, m.requests, m.ignored, m.stages, m.held, m.heldDropped,
		m.kicked, m.unreported, m.takenUp, m.withoutSession)
	// Series that are there from the start, so that the first event of a kind is a change and not a beginning.
	for _, series := range []struct {
		vector *prometheus.CounterVec
		values []string
	}{
		{m.ignored, []string{wire.ReasonNoResponseTopic, wire.ReasonBadResponseTopic, wire.ReasonRetained, wire.ReasonExpired}},
		{m.heldDropped, []string{"full", "expired", "stale", "outcome_unknown", "overloaded"}},
		{m.refused, []string{"age", "client_share"}},
		{m.subscribed, []string{"made", "present", "failed", "unsupported", "dropped"}},
		{m.disconnects, []string{"logged", "no_watches", "dropped"}},
		{m.kicked, []string{"done", "untrusted", "unsupported", "failed", "dropped"}},
	} {
		for _, value := range series.values {
			series.vector.WithLabelValues(value)
		}
	}
	return m
}

func (m *Metrics) answered(r *pending.Request, result *fsm.Result) {
	m.requests.WithLabelValues(commandName(r.Command.Kind), outcomeName(result)).Inc()
}

func (m *Metrics) stage(name string, took time.Duration) {
	m.stages.WithLabelValues(name).Observe(took.Seconds())
}

func commandName(kind fsm.Kind) string {
	switch kind {
	case fsm.KindSet:
		return "set"
	case fsm.KindGet:
		return "get"
	case fsm.KindDel:
		return "del"
	case fsm.KindVDel:
		return "vdel"
	case fsm.KindKeyNotify, fsm.KindKeyNotifyStop:
		return "keynotify"
	default:
		return "invalid"
	}
}

func outcomeName(result *fsm.Result) string {
	switch result.Code {
	case fsm.CodeOK, fsm.CodeDeleted, fsm.CodeValue:
		return "done"
	case fsm.CodeNotApplied:
		return "not_applied"
	case fsm.CodeMissing, fsm.CodeNull:
		return "missing"
	case fsm.CodeDropped:
		return "dropped"
	default:
		return "error"
	}
}
