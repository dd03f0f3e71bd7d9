package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/cluster/raftlog"
	"holdfast/fsm"
	"holdfast/internal/server/audit"
)

// audited is a cluster.Observer that also writes the outcomes of applied entries to the audit log.
type audited struct {
	cluster.Observer
	log *audit.Log
}

// Applied implements cluster.Observer.
func (a *audited) Applied(outcome *fsm.EntryOutcome, tags []any) {
	a.log.Applied(outcome)
	a.Observer.Applied(outcome, tags)
}

// openAudit opens the audit log, or returns nil if none is configured. member is this node's raft
// id, and stores are its stores.
func openAudit(config *Config, member string, stores *raftlog.Stores) (*audit.Log, error) {
	if config.Audit.File == "" {
		return nil, nil
	}
	lost := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_audit_lost_total",
		Help: "Lines of the audit log that could not be written.",
	})
	dropped := prometheus.NewCounter(
		prometheus.CounterOpts{
			Name: "holdfast_audit_denials_dropped_total",
			Help: "Lines about denied commands that were left out of the audit log because too many waited.",
		})
	config.Registry.MustRegister(lost, dropped)
	term, index, err := stores.LastEntry()
	if err != nil {
		return nil, err
	}
	log := config.Audit
	log.Member, log.LastTerm, log.LastIndex = member, term, index
	log.Wall, log.Log, log.Lost = time.Now, config.Log, func(lines int) { lost.Add(float64(lines)) }
	log.Dropped = func(lines int) { dropped.Add(float64(lines)) }
	log.Deadline, log.Exit = config.Timing.DiskDeadline, config.Exit
	return audit.Open(log)
}

func closeAudit(log *audit.Log) error {
	if log == nil {
		return nil
	}
	return log.Close()
}
