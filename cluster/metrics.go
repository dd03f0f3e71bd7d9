package cluster

import (
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
)

// Metrics counts what a Node does. The labels never come from a client's input.
type Metrics struct {
	entries         prometheus.Counter
	commands        prometheus.Counter
	entryBytes      prometheus.Histogram
	applySeconds    prometheus.Histogram
	confirmSeconds  prometheus.Histogram
	skipped         prometheus.Counter
	givenUp         prometheus.Counter
	leader          prometheus.Gauge
	leaderships     prometheus.Counter
	snapshotSeconds prometheus.Histogram
	snapshotBytes   prometheus.Gauge
	storeSeconds    *prometheus.HistogramVec // what
	leaderChanges   prometheus.Counter
}

// NewMetrics registers the metrics.
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
		entries:  counter("holdfast_log_entries_proposed_total", "Log entries proposed by this node."),
		commands: counter("holdfast_log_commands_proposed_total", "Commands in the log entries proposed by this node."),
		entryBytes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_log_entry_bytes", Help: "Size of the log entries proposed by this node.",
			Buckets: prometheus.ExponentialBuckets(64, 4, 10),
		}),
		applySeconds:   seconds("holdfast_apply_seconds", "Time to apply a log entry to the state machine."),
		confirmSeconds: seconds("holdfast_read_confirm_seconds", "Time from a batch of reads to the confirmed leadership."),
		skipped:        counter("holdfast_log_entries_skipped_total", "Log entries without effect: not the next of the serving leader."),
		givenUp:        counter("holdfast_notifications_given_up_total", "Notifications given up because too many were unpublished."),
		leader:         prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_leader", Help: "1 while this node leads, else 0."}),
		leaderships:    counter("holdfast_leaderships_total", "How often this node began to lead."),
		snapshotSeconds: seconds("holdfast_snapshot_seconds",
			"Time to write a snapshot and to cut the log."),
		snapshotBytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_snapshot_bytes", Help: "Size of the newest snapshot."}),
	}
	m.storeSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "holdfast_store_seconds", Help: "Time to write to the disk: entries of the log, a vote, a term.", Buckets: prometheus.ExponentialBuckets(0.00005, 2, 18),
	}, []string{"what"})
	m.leaderChanges = counter("holdfast_leader_changes_total", "How often this node heard of another leader than before.")
	registry.MustRegister(m.storeSeconds, m.leaderChanges, m.entries, m.commands, m.entryBytes, m.applySeconds, m.confirmSeconds, m.skipped, m.givenUp,
		m.leader, m.leaderships, m.snapshotSeconds, m.snapshotBytes)
	return m
}

func (m *Metrics) proposed(commands, bytes int) {
	m.entries.Inc()
	m.commands.Add(float64(commands))
	m.entryBytes.Observe(float64(bytes))
}

func (m *Metrics) applied(outcome *fsm.Outcome, took time.Duration) {
	m.applySeconds.Observe(took.Seconds())
	m.givenUp.Add(float64(outcome.Dropped))
	if outcome.Skipped {
		m.skipped.Inc()
	}
}

func (m *Metrics) confirmed(took time.Duration) { m.confirmSeconds.Observe(took.Seconds()) }

func (m *Metrics) leading(yes bool) {
	if yes {
		m.leaderships.Inc()
		m.leader.Set(1)
		return
	}
	m.leader.Set(0)
}

func (m *Metrics) stored(what string, took time.Duration) {
	m.storeSeconds.WithLabelValues(what).Observe(took.Seconds())
}

func (m *Metrics) snapshotWritten(bytes int64) { m.snapshotBytes.Set(float64(bytes)) }

func (m *Metrics) snapshotTaken(took time.Duration) { m.snapshotSeconds.Observe(took.Seconds()) }

// RegisterState registers gauges that read the node's state when they are scraped.
func RegisterState(registry prometheus.Registerer, node *Node) {
	gauge := func(name, help string, value func(Status) float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(node.Status()) }))
	}
	gauge("holdfast_keys", "Keys in the store.", func(s Status) float64 { return float64(s.State.Keys) })
	gauge("holdfast_bytes", "Bytes of all keys and values.", func(s Status) float64 { return float64(s.State.Bytes) })
	gauge("holdfast_watches", "Watches of clients on keys.", func(s Status) float64 { return float64(s.State.Watches) })
	gauge("holdfast_dedup_entries", "Outcomes that are remembered for copies of their requests.", func(s Status) float64 { return float64(s.State.Remembered) })
	gauge("holdfast_notifications_unpublished", "Notifications beyond the published mark.", func(s Status) float64 { return float64(s.State.Unpublished) })
	gauge("holdfast_raft_term", "Raft's current term.", func(s Status) float64 { return float64(s.Term) })
	gauge("holdfast_raft_commit_index", "Raft's commit index.", func(s Status) float64 { return float64(s.Commit) })
	gauge("holdfast_raft_applied_index", "Index of the last entry in the state.", func(s Status) float64 { return float64(s.State.Index) })
	gauge("holdfast_raft_last_index", "Index of the last entry in the log.", func(s Status) float64 { return float64(s.Last) })
	gauge("holdfast_members", "Members of the cluster.", func(s Status) float64 { return float64(len(s.Servers)) })
	gauge("holdfast_voters", "Members that vote.", func(s Status) float64 { return float64(voters(s.Servers)) })
	gauge("holdfast_members_answering", "Members, this one included, that answered when they were last asked.", func(Status) float64 { return float64(node.peers.Answering()) })
	gauge("holdfast_clock_offset_seconds", "How far this node's clock is ahead of the cluster's.", func(Status) float64 {
		offset, _ := node.ClockOffset()
		return offset.Seconds()
	})
	gauge("holdfast_disk_free_bytes", "Free disk space where the data is.", func(Status) float64 {
		free, _ := node.world.FreeSpace()
		return float64(free)
	})
	gauge("holdfast_disk_low", "1 while that is too little, else 0.", func(Status) float64 {
		if node.diskLow() {
			return 1
		}
		return 0
	})
	gauge("holdfast_log_version", "Version of the log that every member can apply.", func(s Status) float64 { return float64(s.State.Version) })
	gauge("holdfast_cluster_time_seconds", "Cluster time, which decides expiry.", func(s Status) float64 { return float64(s.State.Now) / 1000 })
}

func voters(servers []raft.Server) (count int) {
	for _, server := range servers {
		if server.Suffrage == raft.Voter {
			count++
		}
	}
	return count
}
