package role

import (
	"context"
	"time"

	"holdfast/mqttfront/pending"
)

// admit takes a request in: a leader executes it, another node holds it.
func (q *Requests) admit(ctx context.Context, r *pending.Request) {
	found := q.dedupLookup(r)
	q.mu.Lock()
	defer q.mu.Unlock()
	// The leader, and a node that is the only holder, block here until there is room: TCP backpressure.
	for !q.stopped && !q.role.hasRoom(r) {
		q.blocked.Store(true)
		q.aloneAsked = time.Time{} // the wait may take long
		q.store.Flush()
		q.room.Wait()
	}
	q.blocked.Store(false)
	if q.stopped || ctx.Err() != nil {
		return // not acknowledged: the broker still has it
	}
	q.role.admit(r, found)
}

// dropRedeliveredLocked drops a request that the broker delivers again and that this node must not execute, and reports whether it did.
func (q *Requests) dropRedeliveredLocked(r *pending.Request) bool {
	if !r.Redelivered || r.Read || !q.ingest.rejectsRedelivery(q, r) {
		return false
	}
	q.metrics.HeldDropped.WithLabelValues("outcome_unknown").Inc()
	r.Done()
	return true
}

// addPendingLocked adds a request to the buffer, and reports whether it did. If the buffer is full, it drops the request and acknowledges it to the broker.
func (q *Requests) addPendingLocked(r *pending.Request) bool {
	if q.pending.Full(r) {
		q.fullAt = time.Now()
		q.metrics.HeldDropped.WithLabelValues("full").Inc()
		r.Done()
		return false
	}
	if earlier := q.pending.Get(r.Command.ID); earlier != nil && !earlier.IsOpen() {
		r.MarkDuplicate() // an earlier copy has an outcome, or must not be executed; dedup may have forgotten it when this entry is applied
	}
	q.pending.Add(r)
	q.metrics.Held.Set(float64(q.pending.Len()))
	if !q.onlyHolderLocked(r.Arrived) { // the only holder acknowledges after the reply, so that the broker delivers the request again after a crash
		r.Done()
		r.Done = func() {}
	}
	return true
}

// resolveCopyLocked merges a request with an earlier copy or a hint, and reports whether a follower must add it to the buffer. The only holder always
// adds it.
func (q *Requests) resolveCopyLocked(r *pending.Request) bool {
	if q.onlyHolderLocked(r.Arrived) {
		return true
	}
	if r.Command.ID.IsZero() {
		return false
	}
	earlier := q.pending.Get(r.Command.ID)
	if earlier != nil && earlier.State().IsHeld() && earlier.Expired(r.Arrived) { // its client sent it again: the new copy takes the new position
		q.forgetLocked(earlier)
		earlier = nil
	}
	if earlier != nil {
		if earlier.Outcome() == 0 { // one copy is enough
			earlier.Absorb(r)
			return false
		}
		if !earlier.State().IsHeld() { // the store still has the earlier copy, which answers this one, too, when the store returns it
			earlier.Absorb(r)
			earlier.MarkResent()
			return false
		}
		q.endLocked(earlier) // the reply may have been lost: hold the new copy instead
		return true
	}
	index, known := q.pending.Hints.Take(r.Command.ID, r.Arrived)
	mayBeUnanswered := q.termStart.mayBeUnanswered(index)
	if known && index <= q.published && !mayBeUnanswered {
		return false // answered before this copy arrived
	}
	if r.SetOutcome(index); mayBeUnanswered {
		r.AwaitReport()
	}
	return true
}
