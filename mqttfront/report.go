package mqttfront

import (
	"context"
	"time"

	"holdfast/fsm"
)

const (
	// reportInterval is how often the leader tells the other nodes what it answered outside of the log.
	reportInterval = 100 * time.Millisecond
	// maxReport bounds one report; what is beyond it is not reported, and held elsewhere until it expires.
	maxReport = 1 << 16
)

// report tells the other nodes, until the context ends, which requests were answered that never enter the log: they need not
// hold them any longer.
func (f *Front) report(ctx context.Context) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		f.mu.Lock()
		answered := f.answered
		f.answered = nil
		f.mu.Unlock()
		f.tell(ctx, answered)
	}
}

// tell sends a report. It waits for nobody who is slow: what gets lost is held until it expires.
func (f *Front) tell(ctx context.Context, answered []fsm.RequestID) {
	if len(answered) == 0 {
		return
	}
	message := make([]byte, 0, len(answered)*len(fsm.RequestID{}))
	for i := range answered {
		message = append(message, answered[i][:]...)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*reportInterval)
	defer cancel()
	f.store.Tell(ctx, message)
}

// noteAnswered puts a request that the broker has the answer to into the next report, unless the log tells of it. f.mu is held.
func (f *Front) noteAnswered(o *outgoing) {
	if o.index == 0 || o.request.read {
		f.reportLocked(o.request.command.ID)
	}
}

// reportLocked puts a request that nobody need hold any longer into the next report.
func (f *Front) reportLocked(id fsm.RequestID) {
	if id.IsZero() {
		return
	}
	if len(f.answered) >= maxReport {
		f.world.Metrics.unreported.Inc()
		return
	}
	f.answered = append(f.answered, id)
}

// Told takes the leader's report of what it answered.
func (f *Front) Told(message []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.serving != nil {
		return // of a leader that was
	}
	now := time.Now()
	for len(message) >= len(fsm.RequestID{}) {
		id := fsm.RequestID(message[:len(fsm.RequestID{})])
		message = message[len(id):]
		if r, held := f.pending.byID[id]; held && r.state == stateHeld {
			f.end(r)
			continue
		}
		if !f.config.FollowLeader { // else it will not come here
			f.pending.hints.answered(id, now)
		}
	}
}
