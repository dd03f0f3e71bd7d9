package cluster

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
)

// Metrics are the metrics of one member. Label values never come from a client's input.
type Metrics struct {
	entries              prometheus.Counter
	commands             prometheus.Counter
	entryBytes           prometheus.Histogram
	applySeconds         prometheus.Histogram
	readIndexSeconds     prometheus.Histogram
	skipped              prometheus.Counter
	droppedNotifications prometheus.Counter
	leader               prometheus.Gauge
	leaderships          prometheus.Counter
	snapshotSeconds      prometheus.Histogram
	snapshotBytes        prometheus.Gauge
	storeSeconds         *prometheus.HistogramVec // labelled by the kind of data that is written
	leaderChanges        prometheus.Counter
	comparisons          *prometheus.CounterVec // labelled by the result
}

// NewMetrics registers the metrics. It panics if the registry already has one of them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.00005, 2, 18),
		})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		entries: counter("holdfast_log_entries_proposed_total",
			"Log entries proposed by this node."),
		commands: counter("holdfast_log_commands_proposed_total",
			"Commands in the log entries proposed by this node."),
		entryBytes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "holdfast_log_entry_bytes",
			Help:    "Size of the log entries proposed by this node.",
			Buckets: prometheus.ExponentialBuckets(64, 4, 10),
		}),
		applySeconds: seconds("holdfast_apply_seconds",
			"Time to apply a log entry to the state machine."),
		readIndexSeconds: seconds("holdfast_read_confirm_seconds",
			"Time to confirm the leadership for a batch of reads and to apply the log up to their read index."),
		skipped: counter("holdfast_log_entries_skipped_total",
			"Committed log entries that the state machine ignored: not of the leader that serves, or out of sequence."),
		droppedNotifications: counter("holdfast_notifications_given_up_total",
			"Notifications dropped because the unpublished ones exceeded a limit, on their number or on their bytes."),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_leader",
			Help: "1 while this node leads, else 0.",
		}),
		leaderships: counter("holdfast_leaderships_total",
			"How often this node began to lead."),
		snapshotSeconds: seconds("holdfast_snapshot_seconds",
			"Time to write a snapshot and to compact the log."),
		snapshotBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_snapshot_bytes",
			Help: "Size of the newest snapshot.",
		}),
	}
	m.storeSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "holdfast_store_seconds",
		Help:    "Time of one write to the disk: append or delete log entries, a vote, or a term.",
		Buckets: prometheus.ExponentialBuckets(0.00005, 2, 18),
	}, []string{"what"})
	m.leaderChanges = counter("holdfast_leader_changes_total",
		"Changes of the leader that this node saw in its polls, the first leader included.")
	m.comparisons = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_replica_comparisons_total",
		Help: "Comparisons of the replicas' states by this node as the leader: agree, differ, or incomplete where a member did not answer and the others agree.",
	}, []string{"result"})
	for _, result := range []string{comparisonAgrees, comparisonDiffers, comparisonIncomplete} {
		m.comparisons.WithLabelValues(result)
	}
	registry.MustRegister(m.comparisons, m.storeSeconds, m.leaderChanges, m.entries, m.commands,
		m.entryBytes, m.applySeconds, m.readIndexSeconds, m.skipped, m.droppedNotifications,
		m.leader, m.leaderships, m.snapshotSeconds, m.snapshotBytes)
	return m
}

func (m *Metrics) observeEntry(commands, bytes int) {
	m.entries.Inc()
	m.commands.Add(float64(commands))
	m.entryBytes.Observe(float64(bytes))
}

func (m *Metrics) observeApply(outcome *fsm.EntryOutcome, took time.Duration) {
	m.applySeconds.Observe(took.Seconds())
	m.droppedNotifications.Add(float64(outcome.Dropped))
	if outcome.Skipped {
		m.skipped.Inc()
	}
}

func (m *Metrics) observeReadIndex(
	took time.Duration,
) {
	m.readIndexSeconds.Observe(took.Seconds())
}

func (m *Metrics) setLeading(leads bool) {
	if leads {
		m.leaderships.Inc()
		m.leader.Set(1)
		return
	}
	m.leader.Set(0)
}

func (m *Metrics) observeStoreCall(what string, took time.Duration) {
	m.storeSeconds.WithLabelValues(what).Observe(took.Seconds())
}

// Results of a comparison of the replicas.
const (
	comparisonAgrees     = "agree"
	comparisonDiffers    = "differ"
	comparisonIncomplete = "incomplete"
)

func (m *Metrics) observeVerification(v Verification) {
	switch {
	case !v.Agree:
		m.comparisons.WithLabelValues(comparisonDiffers).Inc()
	case v.Complete:
		m.comparisons.WithLabelValues(comparisonAgrees).Inc()
	default:
		m.comparisons.WithLabelValues(comparisonIncomplete).Inc()
	}
}

func (m *Metrics) setSnapshotBytes(bytes int64) { m.snapshotBytes.Set(float64(bytes)) }

func (m *Metrics) observeSnapshot(took time.Duration) { m.snapshotSeconds.Observe(took.Seconds()) }
