package role

import (
	"context"
	"time"

	"holdfast/fsm"
)

const (
	// reportInterval is the time between two reports of a leader.
	reportInterval = 100 * time.Millisecond
	// maxReport bounds the requests in one report. A request beyond it is not reported: the other nodes hold it until it expires.
	maxReport = 1 << 16
)

// reportAnswered reports to the other nodes, until the context ends, the requests that they need not hold any longer: reads and invalid requests that are
// answered, and those that a merge found to be answered or refused (resolvePeerRequestLocked).
func (l *Leader) reportAnswered(ctx context.Context) {
	every(ctx, reportInterval, func(time.Time) { // endLeadership takes what is left after that
		l.mu.Lock()
		answered := l.toRelease
		l.toRelease = nil
		l.mu.Unlock()
		l.sendReport(context.WithoutCancel(ctx), answered) // even if ctx ends: Lead reports only what is still in toRelease
	})
}

// sendReport sends a report, for at most two intervals. A node that does not get it holds the requests until they expire.
func (l *Leader) sendReport(ctx context.Context, answered []fsm.RequestID) {
	if len(answered) == 0 {
		return
	}
	message := make([]byte, 0, len(answered)*len(fsm.RequestID{}))
	for i := range answered {
		message = append(message, answered[i][:]...)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*reportInterval)
	defer cancel()
	l.store.Broadcast(ctx, message)
}

// reportLocked puts a request that no node need hold any longer into the next report.
func (l *Leader) reportLocked(id fsm.RequestID) {
	if id.IsZero() {
		return
	}
	if len(l.toRelease) >= maxReport {
		l.metrics.Unreported.Inc()
		return
	}
	l.toRelease = append(l.toRelease, id)
}
