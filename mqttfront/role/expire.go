package role

import (
	"time"

	"holdfast/mqttfront/pending"
)

// removeExpired removes the expired requests and hints that are of no use any more.
func (t *tracker) removeExpired(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending.Hints().Forget(now)
	// Expired requests help to order other nodes' requests. They are useless if no other node has any, or if requests that have not expired need the room.
	useless := t.onlyHolderLocked(now) || t.pending.Crowded()
	for r := range t.pending.All() {
		if r.State().IsHeld() && (r.Forgettable(now) || useless && now.After(r.HoldUntil)) {
			t.forgetLocked(r)
		}
	}
}

// forgetLocked removes a held request for which no client waits any more.
func (t *tracker) forgetLocked(r *pending.Request) {
	if r.OutcomeIndex() == 0 {
		t.metrics.HeldDropped.WithLabelValues("expired").Inc()
		t.recordExpiredLocked(r)
	}
	t.endLocked(r)
}

// recordExpiredLocked notes that a request expired before this node executed it.
func (t *tracker) recordExpiredLocked(r *pending.Request) {
	if !r.Command.ID.IsZero() && !r.Read {
		t.pending.Hints().RecordEnd(r.Command.ID, pending.EndExpired, 0, false, time.Now())
	}
}
