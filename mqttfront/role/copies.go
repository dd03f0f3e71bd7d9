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

// rejectRedeliveryLocked reports whether this node must not execute a redelivery. The request expired here; or, with cluster.ingest: leader, it was
// refused without a reply. Then later requests of its client may have been executed since. Or it has no identity, with cluster.ingest: leader:
// an earlier leader may have executed it, and no node could recognise it.
func (q *Requests) rejectRedeliveryLocked(r *pending.Request) bool {
	id := r.Command.ID
	switch {
	case r.Read:
		return false
	case id.IsZero():
		return !q.mode.followersHold()
	default:
		if earlier := q.pending.Get(id); earlier != nil && earlier.State().IsHeld() && earlier.IsOpen() && earlier.Expired(r.Arrived) {
			return true
		}
		return !q.pending.Hints.EndedAt(id, pending.EndExpired).IsZero() || !q.mode.followersHold() && !q.pending.Hints.EndedAt(id, pending.EndNoReply).IsZero()
	}
}

// isOfUnknownAgeLocked reports whether nothing tells the age of a write that the broker delivers again in the leader's session: deduplication may have
// forgotten it. The broker redelivers in-flight messages before queued ones, so no probe precedes the message and bounds its age. A remaining
// message expiry above one second shows that it is young enough; brokers also deliver expired messages, with one second left. Such a write is
// answered if its outcome is known, and is not executed otherwise.
func (q *Requests) isOfUnknownAgeLocked(r *pending.Request) bool {
	const least = time.Second
	if !r.Redelivered || q.mode.followersHold() || !r.IsDeduplicated() || r.Deadline.Sub(r.Arrived) > least {
		return false
	}
	earlier := q.pending.Get(r.Command.ID) // received by this node, which knows its age
	return earlier == nil || !earlier.IsOpen()
}
