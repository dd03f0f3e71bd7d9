// Package metrics counts what the front end of a node does.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/publish"
	"holdfast/mqttfront/wire"
)

// Metrics are the metrics of one node, by the names and with the meanings that New gives them. The labels never come from a client's input.
// All of it is safe for concurrent use.
type Metrics struct {
	Ingest  *ingest.Metrics
	Publish *publish.Metrics

	requests    *prometheus.CounterVec // command, outcome
	Ignored     *prometheus.CounterVec // reason
	stages      *prometheus.HistogramVec
	Held        prometheus.Gauge
	HeldDropped *prometheus.CounterVec // reason
	Refused     *prometheus.CounterVec // reason
	Subscribed  *prometheus.CounterVec // result
	Kicked      *prometheus.CounterVec // result
	Unreported  prometheus.Counter
	TakenUp     prometheus.Counter
	Disconnects *prometheus.CounterVec // result

	WithoutSession prometheus.Counter
}

// New registers the metrics.
func New(registry prometheus.Registerer) *Metrics {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	buckets := prometheus.ExponentialBuckets(0.00005, 2, 18)
	m := &Metrics{
		Publish:  publish.NewMetrics(registry),
		requests: vector("holdfast_requests_total", "Requests answered by this node.", "command", "outcome"),
		Ignored:  vector("holdfast_requests_ignored_total", "Messages on the invoke topic that are no requests, or too late.", "reason"),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "holdfast_request_seconds", Help: "Time of requests by stage: queue (until taken up), commit (until the outcome is known), publish (until the broker has the reply).",
			Buckets: buckets,
		}, []string{"stage"}),
		Held:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_held_requests", Help: "Requests that this node keeps until they are known to be answered."}),
		HeldDropped: vector("holdfast_held_requests_dropped_total", "Requests given up unanswered by this node.", "reason"),
		Refused:     vector("holdfast_requests_refused_total", "Requests answered that the service is overloaded: they waited too long (age), or their client has too many under way (client_share).", "reason"),
		Subscribed:  vector("holdfast_notification_subscriptions_total", "Clients that watch and were looked at whether they subscribe to their notifications: made for them, present, failed, unsupported by the driver's settings, or dropped for lack of room.", "result"),
		Kicked:      vector("holdfast_clients_sent_away_total", "Clients that were to be disconnected for an invalid response topic.", "result"),
		Unreported:  prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_reports_dropped_total", Help: "Answered requests that the other nodes were not told of: they hold them until they expire."}),
		TakenUp:     prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_held_requests_taken_up_total", Help: "Requests that only other nodes held when this one led."}),
	}
	m.WithoutSession = prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_publish_without_session_total", Help: "How often a leader published on a new connection before its own session was up, because that took too long or requests waited for room."})
	m.Ingest = ingest.NewMetrics(registry, m.HeldDropped.WithLabelValues("stale"))
	m.Disconnects = vector("holdfast_departures_total", "Ends of clients that the broker told of: logged, or no_watches where there was nothing to end; dropped by a node that does not lead, for want of room.", "result")
	registry.MustRegister(m.Disconnects, m.Refused, m.Subscribed, m.requests, m.Ignored, m.stages, m.Held, m.HeldDropped,
		m.Kicked, m.Unreported, m.TakenUp, m.WithoutSession)
	// Series that are there from the start, so that the first event of a kind is a change and not a beginning.
	for _, series := range []struct {
		vector *prometheus.CounterVec
		values []string
	}{
		{m.Ignored, []string{wire.ReasonNoResponseTopic, wire.ReasonBadResponseTopic, wire.ReasonRetained, wire.ReasonExpired}},
		{m.HeldDropped, []string{"full", "expired", "stale", "outcome_unknown", "overloaded"}},
		{m.Refused, []string{"age", "client_share"}},
		{m.Subscribed, []string{"made", "present", "failed", "unsupported", "dropped"}},
		{m.Disconnects, []string{"logged", "no_watches", "dropped"}},
		{m.Kicked, []string{"done", "untrusted", "unsupported", "failed", "dropped"}},
	} {
		for _, value := range series.values {
			series.vector.WithLabelValues(value)
		}
	}
	return m
}

// Answered counts a request by its command and its outcome.
func (m *Metrics) Answered(r *pending.Request, result *fsm.Result) {
	m.requests.WithLabelValues(commandName(r.Command.Kind), outcomeName(result)).Inc()
}

// Stage observes the time of one stage of a request: queue, commit or publish.
func (m *Metrics) Stage(name string, took time.Duration) {
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
	case fsm.CodeNoReply:
		return "dropped"
	default:
		return "error"
	}
}
