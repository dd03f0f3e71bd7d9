package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// The methods below implement what cluster.Observer asks of the front end.

// Applied passes an applied log entry to the role: the changes of watched keys and the outcomes of commands, in the order of the entry. The notifications of a
// command's changes come before its reply.
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

// appliedCommandLocked passes the outcome of one command to the role, and records how its request ended.
func (d *Dispatcher) appliedCommandLocked(outcome *fsm.EntryOutcome, i int, tags []any) {
	d.updateLogStateLocked(outcome, &outcome.Commands[i])
	if tags != nil && tags[i] != nil {
		d.role.committedLocked(tags[i].(*pending.Request), outcome, i)
	}
	d.recordEndLocked(outcome, i, d.role.expectsCopiesLocked())
}

// Restored is called when a snapshot has replaced the state. The snapshot may have outcomes of requests that this node still holds: Applied was not called
// for them. If the leader has changed, an earlier leader may have executed requests and not published their replies. This node cannot tell which.
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

// ReadDone passes the result of a GET or a SCAN to the role.
func (d *Dispatcher) ReadDone(tag any, _ uint64, result fsm.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.role.readDoneLocked(tag.(*pending.Request), &result)
}

// Failed is called for a command that has no result. unknown says that it may have taken effect, or still may. Its client gets no reply: the request waits
// until a node leads again. If unknown is true, a write that the dedup table cannot find, because it has no id, must not be proposed again: it is dropped.
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

// Held returns a page of the requests that this node has held for at least age, from a cursor that begins at 0, and the next cursor, 0 at the end. See
// pending.Buffer.Page.
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
