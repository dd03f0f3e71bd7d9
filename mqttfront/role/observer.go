package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// What the store tells and asks.

// Applied implements the store's observer.
func (q *Requests) Applied(outcome *fsm.Outcome, tags []any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := outcome.Events
	notifyUpTo := func(position int) {
		for len(events) > 0 && events[0].Command <= position {
			q.role.changed(&events[0])
			events = events[1:]
		}
	}
	if !outcome.Skipped {
		for i := range outcome.Commands {
			notifyUpTo(i)
			q.appliedCommandLocked(outcome, i, tags)
		}
		notifyUpTo(len(outcome.Commands))
	}
	q.published = max(q.published, outcome.Published)
	q.role.applied(outcome)
}

// Restored implements the store's observer: the state may know outcomes of held requests that the node was not told of. If the leader has changed,
// what the node does not know to be published may have been executed by the earlier one.
func (q *Requests) Restored(status fsm.Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending.NeedsLookup = true
	q.pending.AwaitReports()
	switch q.termStart.term {
	case status.LeaderTerm:
	case 0: // the process has just begun, and has applied no entry
		q.termStart.term = status.LeaderTerm
	default:
		q.termStart = termStart{term: status.LeaderTerm, published: q.published, index: status.Index}
	}
}

// ReadDone implements the store's observer.
func (q *Requests) ReadDone(tag any, _ uint64, result fsm.Result) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.role.readDone(tag.(*pending.Request), &result)
}

// Failed implements the store's observer. Nothing of it reaches a client: the request waits for the next leadership. One
// without an identity whose outcome is unknown must never be proposed again, so it stays unanswered.
func (q *Requests) Failed(tag any, unknown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := tag.(*pending.Request)
	if unknown {
		q.requeueMaybeAppliedLocked(r)
	} else {
		q.requeueLocked(r)
	}
}

// Held returns a page of the requests that this node holds, in the order of their arrival, from a cursor that begins at 0, and
// the next cursor, 0 at the end. With an age it leaves out what is younger, and what is known to have an outcome.
func (q *Requests) Held(cursor uint64, age time.Duration) (page []byte, next uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pending.Page(cursor, age, time.Now())
}

// HandleBroadcast takes the leader's report of what it answered.
func (q *Requests) HandleBroadcast(message []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for len(message) >= len(fsm.RequestID{}) {
		id := fsm.RequestID(message[:len(fsm.RequestID{})])
		message = message[len(id):]
		q.role.reported(id, now)
	}
}
