package role

import (
	"time"

	"holdfast/mqttfront/pending"
)

// giveUp removes what has expired, as far as it is of no use any more.
func (q *Requests) giveUp(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending.Hints.Forget(now)
	// Without other nodes' requests beside them, expired requests say nothing of where these stand. And those with a client that waits need the room.
	useless := q.onlyHolderLocked(now) || q.pending.Crowded()
	for r := range q.pending.All() {
		if r.State().IsHeld() && (r.Forgettable(now) || useless && now.After(r.HoldUntil)) {
			q.forgetLocked(r)
		}
	}
}

// forgetLocked removes a held request for which no client waits any more.
func (q *Requests) forgetLocked(r *pending.Request) {
	if r.Outcome() == 0 {
		q.metrics.HeldDropped.WithLabelValues("expired").Inc()
		q.noteExpiredLocked(r)
	}
	q.endLocked(r)
}

// noteExpiredLocked notes that a request expired before this node executed it.
func (q *Requests) noteExpiredLocked(r *pending.Request) {
	if !r.Command.ID.IsZero() && !r.Read {
		q.pending.Hints.Ended(r.Command.ID, pending.EndExpired, 0, false, time.Now())
	}
}
