package mqttfront

import (
	"context"
	"time"

	"holdfast/mqttfront/pending"
)

// admit takes a request in: a leader executes it, another node holds it.
func (q *requests) admit(ctx context.Context, r *pending.Request) {
	found := q.dedupLookup(r)
	q.mu.Lock()
	defer q.mu.Unlock()
	// A node that answers, or that alone has a request, waits for room, and TCP pushes back.
	for !q.stopped && !q.role.hasRoom(r) {
		q.pushesBack.Store(true)
		q.store.Flush()
		q.room.Wait()
	}
	q.pushesBack.Store(false)
	if q.stopped || ctx.Err() != nil {
		return // not acknowledged: the broker still has it
	}
	q.role.admit(r, found)
}

// dropRedeliveredLocked drops a request that the broker delivers again and that this node must not execute, and reports whether it did.
func (q *requests) dropRedeliveredLocked(r *pending.Request) bool {
	if !r.Redelivered || !q.rejectRedeliveryLocked(r) {
		return false
	}
	q.metrics.HeldDropped.WithLabelValues("outcome_unknown").Inc()
	r.Done()
	return true
}

// holdLocked adds a request to the pending ones, if there is room for it.
func (q *requests) holdLocked(r *pending.Request) bool {
	if q.pending.Full(r) {
		q.fullAt = time.Now()
		q.metrics.HeldDropped.WithLabelValues("full").Inc()
		r.Done()
		return false
	}
	if earlier := q.pending.Get(r.Command.ID); earlier != nil && !earlier.IsOpen() {
		r.MarkCopy() // it came again after the outcome, which may be forgotten when the entry is applied
	}
	q.pending.Add(r)
	q.metrics.Held.Set(float64(q.pending.Len()))
	if !q.onlyHolder() { // otherwise a request that is not answered when the node ends has to come again
		r.Done()
		r.Done = func() {}
	}
	return true
}

// keepsLocked reports whether a node that does not lead holds the request. In a cluster of one it is the only node to have it.
func (q *requests) keepsLocked(r *pending.Request) bool {
	if q.onlyHolder() {
		return true
	}
	if r.Command.ID.IsZero() {
		return false
	}
	earlier := q.pending.Get(r.Command.ID)
	if earlier != nil && earlier.State().IsHeld() && earlier.Expired(r.Arrived) { // its client sends it again: that stands where it comes
		q.forgetLocked(earlier)
		earlier = nil
	}
	if earlier != nil {
		if earlier.Outcome() == 0 { // one copy is enough
			earlier.Absorb(r)
			return false
		}
		if !earlier.State().IsHeld() { // the store has it, and gives it back: then it stands for the client that asks again
			earlier.Absorb(r)
			earlier.AskAgain()
			return false
		}
		q.endLocked(earlier) // the client asks again for an outcome that may be published, but did not reach it
		return true
	}
	index, known := q.pending.Hints.ArrivedEarly(r.Command.ID, r.Arrived)
	if known && index <= q.mark {
		return false // answered before it came
	}
	r.Commit(index)
	return true
}
