// Package metrics counts what the front end of a node does.
package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/mqttfront/mirror"
	"holdfast/mqttfront/outbox"
	"holdfast/mqttfront/session"
	"holdfast/mqttfront/wire"
)

// Metrics are the metrics of one node, by the names and with the meanings that New gives them. The
// labels never come from a client's input. All of it is safe for concurrent use.
type Metrics struct {
	Session *session.Metrics
	Mirror  *mirror.Metrics
	Publish *outbox.Metrics

	requests *prometheus.CounterVec // command, outcome
	// cache of the counters of requests, because a lookup by labels is slow
	answered    [commands][outcomes]atomic.Pointer[prometheus.Counter]
	Ignored     *prometheus.CounterVec // reason
	stages      [stageCount]prometheus.Observer
	UnderWay    prometheus.Gauge
	Dropped     *prometheus.CounterVec // reason
	Refused     *prometheus.CounterVec // reason
	Limited     *prometheus.CounterVec // limit
	Subscribed  *prometheus.CounterVec // result
	Kicked      *prometheus.CounterVec // result
	Disconnects *prometheus.CounterVec // result

	WatchesTested prometheus.Counter
	otherStore    prometheus.Gauge
}

// New registers the metrics.
func New(registry prometheus.Registerer) *Metrics {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "holdfast_request_seconds",
		Help:    "Time of requests by stage: queue (until taken up), commit (until the outcome is known), publish (until the broker has the reply).",
		Buckets: prometheus.ExponentialBuckets(0.00005, 2, 18),
	}, []string{"stage"})
	m := &Metrics{
		Publish: outbox.NewMetrics(registry),
		Mirror:  mirror.NewMetrics(registry),
		requests: vector("holdfast_requests_total", "Requests answered by this node.", "command",
			"outcome"),
		Ignored: vector("holdfast_requests_ignored_total",
			"Messages on the invoke topic that are no requests, or too late.", "reason"),
		otherStore: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_other_store",
			Help: "1 while another store answers requests at the same broker, else 0.",
		}),
		UnderWay: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_requests_under_way",
			Help: "Requests that this node executes or answers now.",
		}),
		Dropped: vector("holdfast_requests_dropped_total",
			"Requests that got no reply: too old to know whether they were executed before (outcome_unknown), with a reply that the broker did not acknowledge within a minute (stuck), or shed without an identity by which the refusal could be remembered (overloaded), or impossible to encode for the log (invalid).", "reason"),
		Refused: vector("holdfast_requests_refused_total",
			"Requests answered that the service is overloaded: they waited too long (age), their client has too many under way (client_share), too many SCANs are (scans), or there is no room to remember the outcome (outcomes).", "reason"),
		Limited: vector("holdfast_quota_refusals_total",
			"Requests answered that the quota has been exceeded, by the limit that they met: a setting, or size (limits.keyBytes or limits.valueBytes), watch_bytes, patterns, pattern_bytes, notification_topic, txn_read_bytes, txn_patterns.", "limit"),
		Subscribed: vector("holdfast_notification_subscriptions_total",
			"Attempts to subscribe a watching client to its notifications by the driver: made, present (it has a subscription), failed, unsupported (by the driver's settings), or dropped (the queue was full).", "result"),
		Kicked: vector("holdfast_clients_kicked_total",
			"Clients that were to be disconnected: for an invalid response topic, or because the broker ends publishing connections on replies to them.", "result"),
	}
	m.WatchesTested = prometheus.NewCounter(
		prometheus.CounterOpts{
			Name: "holdfast_watches_tested_total",
			Help: "Notifications that were repeated, because the watches are nearly as many as may be, to find out whether their clients are still there.",
		})
	m.Session = session.NewMetrics(registry)
	m.Disconnects = vector("holdfast_client_disconnects_total",
		"Client disconnects that the broker reported: logged, no_watches (there was no watch to end), or dropped (by a node that does not lead: its queue was full).", "result")
	registry.MustRegister(m.otherStore, m.Disconnects, m.Refused, m.Limited, m.Subscribed,
		m.requests,
		m.Ignored, seconds, m.UnderWay, m.Dropped,
		m.Kicked, m.WatchesTested)
	for stage, name := range [stageCount]string{
		StageQueue: "queue", StageCommit: "commit",
		StagePublish: "publish",
	} {
		m.stages[stage] = seconds.WithLabelValues(name)
	}
	// Each series begins at 0, so that increase() counts the first event.
	for _, series := range []struct {
		vector *prometheus.CounterVec
		values []string
	}{
		{m.Ignored, []string{
			wire.ReasonNoResponseTopic, wire.ReasonBadResponseTopic,
			wire.ReasonRetained, wire.ReasonExpired,
		}},
		{m.Dropped, []string{"outcome_unknown", "stuck", "overloaded", "invalid"}},
		{m.Refused, []string{"age", "client_share", "scans", "outcomes"}},
		{m.Subscribed, []string{"made", "present", "failed", "unsupported", "dropped"}},
		{m.Disconnects, []string{"logged", "no_watches", "dropped"}},
		{m.Kicked, []string{"done", "untrusted", "unsupported", "failed", "dropped"}},
	} {
		for _, value := range series.values {
			series.vector.WithLabelValues(value)
		}
	}
	for _, limit := range fsm.AllLimits() {
		m.Limited.WithLabelValues(limit.Name())
	}
	return m
}

// Stage is a part of the time that a request takes.
type Stage uint8

// The stages of a request.
const (
	StageQueue   Stage = iota // until the leader takes it up
	StageCommit               // until its outcome is known
	StagePublish              // until the broker has the reply
	stageCount
)

// ObserveStage observes the time of one stage of a request.
func (m *Metrics) ObserveStage(stage Stage, took time.Duration) {
	m.stages[stage].Observe(took.Seconds())
}

// Answered counts a request by its command and its outcome.
func (m *Metrics) Answered(kind fsm.Kind, result *fsm.Result) {
	command, outcome := commandOf(kind), outcomeOf(result)
	known := &m.answered[command][outcome]
	counter := known.Load()
	if counter == nil {
		made := m.requests.WithLabelValues(commandNames()[command], outcomeNames()[outcome])
		counter = &made
		known.Store(counter)
	}
	(*counter).Inc()
}

const (
	commandInvalid = iota
	commandSet
	commandGet
	commandDel
	commandVDel
	commandKeyNotify
	commandScan
	commandTxn
	commands
)

func commandNames() [commands]string {
	return [commands]string{"invalid", "set", "get", "del", "vdel", "keynotify", "scan", "txn"}
}

func commandOf(kind fsm.Kind) int {
	switch kind {
	case fsm.KindSet:
		return commandSet
	case fsm.KindGet:
		return commandGet
	case fsm.KindDel:
		return commandDel
	case fsm.KindVDel:
		return commandVDel
	case fsm.KindKeyNotify, fsm.KindKeyNotifyStop:
		return commandKeyNotify
	case fsm.KindScan:
		return commandScan
	case fsm.KindTxn:
		return commandTxn
	default:
		return commandInvalid
	}
}

const (
	outcomeError = iota
	outcomeDone
	outcomeNotApplied
	outcomeMissing
	outcomeDropped
	outcomes
)

func outcomeNames() [outcomes]string {
	return [outcomes]string{"error", "done", "not_applied", "missing", "dropped"}
}

func outcomeOf(result *fsm.Result) int {
	switch result.Code {
	case fsm.CodeOK, fsm.CodeDeleted, fsm.CodeValue, fsm.CodeKeys, fsm.CodeReplies:
		return outcomeDone
	case fsm.CodeNotApplied:
		return outcomeNotApplied
	case fsm.CodeMissing, fsm.CodeNull:
		return outcomeMissing
	case fsm.CodeNoReply:
		return outcomeDropped
	default:
		return outcomeError
	}
}

// SetOtherStore records whether another store answers requests at the broker.
func (m *Metrics) SetOtherStore(other bool) {
	value := 0.0 // set once: a scrape must not see another value in between
	if other {
		value = 1
	}
	m.otherStore.Set(value)
}
