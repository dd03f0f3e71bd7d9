package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// A request may arrive several times. A node may hold a request that was already executed or shed, and not know it. The functions of this file prevent
// that a copy is executed twice, or out of its client's order.

// dedupLookup marks a request that has just come as a duplicate if the state has its outcome. A node that missed log entries learns that only from the state.
// A leader skips the lookup: the state machine deduplicates when it applies.
func (q *Requests) dedupLookup(r *pending.Request) (found dedupResult) {
	if r.Command.ID.IsZero() || r.Read {
		return dedupResult{checked: true}
	}
	if q.leads() {
		return dedupResult{}
	}
	return dedupResult{checked: true, index: q.markIfKnown(r)}
}

// markIfKnown marks a request as a duplicate if the dedup table has its outcome, and returns the index of the entry that has
// it, or 0.
func (q *Requests) markIfKnown(r *pending.Request) (found uint64) {
	q.store.View(func(m *fsm.Machine) {
		_, index, known := m.Remembered(r.Command.ID)
		if known {
			found = index
			r.MarkDuplicate()
		}
	})
	return found
}

// recheckPending marks duplicates among all requests that a follower holds. It does so if the state may know outcomes that the node did not look up: of
// requests that it took in while it led, or after it installed a snapshot.
func (q *Requests) recheckPending() {
	q.store.View(func(m *fsm.Machine) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.role.leads() || !q.pending.NeedsLookup {
			return
		}
		q.pending.NeedsLookup = false
		for r := range q.pending.All() {
			if r.IsDuplicate() || r.Read || r.Command.ID.IsZero() {
				continue
			}
			if _, _, known := m.Remembered(r.Command.ID); known {
				r.MarkDuplicate()
			}
		}
	})
}

// refusedWithoutReplyLocked reports whether the log refused a request without a reply after this copy of it had arrived.
func (q *Requests) refusedWithoutReplyLocked(r *pending.Request) bool {
	const imprecise = 10 * time.Millisecond // a peer sends an arrival time as an age in whole milliseconds
	return q.pending.Hints.EndedAt(r.Command.ID, pending.EndNoReply).After(r.Arrived.Add(-imprecise))
}

// expiredHereLocked reports whether an earlier copy of a request expired before this node executed it.
func (q *Requests) expiredHereLocked(r *pending.Request) bool {
	earlier := q.pending.Get(r.Command.ID)
	held := earlier != nil && earlier.State().IsHeld() && earlier.IsOpen() && earlier.Expired(r.Arrived)
	return held || !q.pending.Hints.EndedAt(r.Command.ID, pending.EndExpired).IsZero()
}
