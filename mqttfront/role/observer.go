package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// The methods below implement cluster.Observer for Front.

// Applied implements the store's observer.
func (d *Dispatcher) Applied(outcome *fsm.EntryOutcome, tags []any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	events := outcome.Events
	notifyUpTo := func(position int) {
		for len(events) > 0 && events[0].Command <= position {
			d.role.changedLocked(&events[0])
			events = events[1:]
		}
	}
	if !outcome.Skipped {
		for i := range outcome.Commands {
			notifyUpTo(i)
			d.appliedCommandLocked(outcome, i, tags)
		}
		notifyUpTo(len(outcome.Commands))
	}
	d.known.published = max(d.known.published, outcome.Published)
	d.role.appliedLocked(outcome)
}

// appliedCommandLocked takes up the outcome of one command.
func (d *Dispatcher) appliedCommandLocked(outcome *fsm.EntryOutcome, i int, tags []any) {
	d.updateLogStateLocked(outcome, &outcome.Commands[i])
	if tags != nil && tags[i] != nil {
		d.role.committedLocked(tags[i].(*pending.Request), outcome, i)
	}
	d.recordEndLocked(outcome, i, d.role.expectsCopiesLocked())
}

// Restored implements the store's observer: a snapshot has replaced the state, which may have outcomes of held requests that Applied did not report. If
// the leader has changed, an earlier leader may have executed requests whose replies this node does not know to be published.
func (d *Dispatcher) Restored(status fsm.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unchecked = true
	d.pending.AwaitReports()
	switch d.known.termStart.term {
	case status.LeaderTerm:
	case 0: // the process has just begun, and has applied no entry
		d.known.termStart.term = status.LeaderTerm
	default:
		d.known.termStart = termStart{term: status.LeaderTerm, published: d.known.published, index: status.Index}
	}
}

// ReadDone implements the store's observer.
func (d *Dispatcher) ReadDone(tag any, _ uint64, result fsm.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.role.readDoneLocked(tag.(*pending.Request), &result)
}

// Failed implements the store's observer. unknown says that the command may have taken effect, or still may. No client is told: the request waits for the next
// leadership. If unknown is true, a write without an identity must never be proposed again. It is dropped unanswered.
func (d *Dispatcher) Failed(tag any, unknown bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := tag.(*pending.Request)
	if unknown {
		requeueMaybeAppliedLocked(d.tracker, d.role, r)
	} else {
		requeueLocked(d.tracker, d.role, r)
	}
}

// Held returns a page of this node's pending requests from a cursor that begins at 0, and the next cursor, 0 at the end. See pending.Buffer.Page.
func (d *Dispatcher) Held(cursor uint64, age time.Duration) (page []byte, next uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pending.Page(cursor, age, time.Now())
}

// HandleBroadcast handles a leader's report: the ids of requests that need not be held any longer.
func (d *Dispatcher) HandleBroadcast(message []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for len(message) >= len(fsm.RequestID{}) {
		id := fsm.RequestID(message[:len(fsm.RequestID{})])
		message = message[len(id):]
		d.role.reportedLocked(id, now)
	}
}
