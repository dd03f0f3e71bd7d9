package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// The methods below implement role for a Leader.

func (*Leader) leadsLocked() bool { return true }

func (l *Leader) hasRoomLocked(r *pending.Request) bool {
	return l.load.busy < l.config.Executing && !l.pending.Full(r)
}

func (l *Leader) admitLocked(r *pending.Request, _ dedupResult) {
	if l.dropRedeliveredLocked(r) {
		return
	}
	if l.ingest.isOfUnknownAge(r, l.pending.Get(r.Command.ID)) {
		r.MarkLate()
	}
	if l.addPendingLocked(r) && l.serving {
		l.executeLocked(r, true)
	}
}

const (
	leaderDelay = 20 * time.Millisecond // the longest coalescing delay of a leader
	delayShare  = 4                     // the delay is at most load.turnaround divided by delayShare
	enoughToDo  = 16                    // with fewer requests under way there is no delay
)

func (l *Leader) coalescingDelayLocked() time.Duration {
	if l.load.busy < enoughToDo {
		return 0
	}
	return min(leaderDelay, l.load.turnaround/delayShare)
}

func (l *Leader) changedLocked(event *fsm.Event) { l.notifyLocked(event, 0) }

func (l *Leader) committedLocked(r *pending.Request, outcome *fsm.EntryOutcome, i int) {
	if r.Command.Kind == fsm.KindScan { // the command in the log was a no-op
		l.pending.EndProposal(r)
		if !l.store.Read(&r.Command, r) {
			requeueLocked(l.tracker, l, r)
		}
		l.store.Flush()
		return
	}
	if isUnremembered(&outcome.Commands[i], &outcome.Results[i]) {
		l.metrics.Refused.WithLabelValues("outcomes").Inc()
	}
	// The store proposes a refusal in place of a write that waited there for longer than ProposalAge. The outcome of such a write may be forgotten. So
	// may that of a request whose refusal waited there for so long.
	late := outcome.Commands[i].Kind == fsm.KindReject && r.State() != pending.StateShedding || r.State() == pending.StateShedding && time.Since(r.Began) > l.config.ProposalAge
	rejected := late || r.State() == pending.StateRejecting || r.State() == pending.StateRetrieving
	if !rejected || l.resolveRejectedLocked(r, outcome.Index, &outcome.Results[i]) {
		l.answerLocked(r, outcome.Index, &outcome.Results[i])
	}
}

// isUnremembered reports whether a command was refused because there is no room to remember its outcome.
func isUnremembered(command *fsm.Command, result *fsm.Result) bool {
	return command.Kind != fsm.KindReject && !result.Repeat && (result.Error == fsm.ErrorOverloaded || result.Code == fsm.CodeNoReply)
}

func (l *Leader) appliedLocked(*fsm.EntryOutcome) { l.passUnsentLocked() }

func (l *Leader) readDoneLocked(r *pending.Request, result *fsm.Result) {
	if r.Scan == pending.ScanReading {
		l.load.scans.move(r.ClientKey(), &r.Scan, pending.ScanDelivering)
	}
	l.answerLocked(r, 0, result)
}

// requeuedLocked drops a stale request. It does not call EndProposal: the leadership is about to end, and no GET of the same client may overtake a write
// until then.
func (l *Leader) requeuedLocked(r *pending.Request) {
	l.dropStaleLocked(r)
}

func (l *Leader) expectsCopiesLocked() bool { return false }

func (l *Leader) reportedLocked(fsm.RequestID, time.Time) {} // a report of an earlier leader
