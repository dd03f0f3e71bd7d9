package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// A request may arrive several times. A node may hold a request that was already executed or shed, and not know it. The functions of this file prevent
// that a request is executed twice, or out of its client's order.

// markIfKnown marks a request as a duplicate if the dedup table has its outcome, and returns the index of the entry that has
// it, or 0.
func (t *tracker) markIfKnown(r *pending.Request) (found uint64) {
	t.store.View(func(m *fsm.Machine) {
		_, index, known := m.Remembered(r.Command.ID)
		if known {
			found = index
			r.MarkDuplicate()
		}
	})
	return found
}

// recheckPendingLocked marks duplicates among all requests that a node holds. It does so only after the node led, or installed a snapshot: then the state
// may have outcomes of held requests that the node did not look up. The node must not lead.
func (t *tracker) recheckPendingLocked(m *fsm.Machine) {
	if !t.unchecked {
		return
	}
	t.unchecked = false
	for r := range t.pending.All() {
		if r.IsDuplicate() || r.Read || r.Command.ID.IsZero() {
			continue
		}
		if _, _, known := m.Remembered(r.Command.ID); known {
			r.MarkDuplicate()
		}
	}
}

// refusedWithoutReplyLocked reports whether the log refused a request without a reply after this copy of it had arrived.
func (t *tracker) refusedWithoutReplyLocked(r *pending.Request) bool {
	const imprecise = 10 * time.Millisecond // a peer sends an arrival time as an age in whole milliseconds
	return t.pending.Hints().EndedAt(r.Command.ID, pending.EndNoReply).After(r.Arrived.Add(-imprecise))
}
