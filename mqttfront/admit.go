package mqttfront

import (
	"context"
	"time"

	"holdfast/mqttfront/pending"
)

// admit takes a request in: a leader executes it, another node holds it.
func (f *Front) admit(ctx context.Context, r *pending.Request) {
	found := f.dedupLookup(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	// A node that answers, or that alone has a request, waits for room, and TCP pushes back.
	for !f.stopped && !f.role.hasRoom(f, r) {
		f.pushesBack.Store(true)
		f.store.Flush()
		f.room.Wait()
	}
	f.pushesBack.Store(false)
	if f.stopped || ctx.Err() != nil {
		return // not acknowledged: the broker still has it
	}
	f.role.admit(f, r, found)
}

// onlyHolder reports whether only this node and the broker have the requests that come here.
func (f *Front) onlyHolder() bool { return f.mode.onlyHolder(f.store.Alone()) }

// dropRedelivered drops a request that the broker delivers again and that this node must not execute, and reports whether it did. It needs Front.mu.
func (f *Front) dropRedelivered(r *pending.Request) bool {
	if !r.Redelivered || !f.rejectRedelivery(r) {
		return false
	}
	f.world.Metrics.heldDropped.WithLabelValues("outcome_unknown").Inc()
	r.Done()
	return true
}

// hold adds a request to the pending ones, if there is room for it. It needs Front.mu.
func (f *Front) hold(r *pending.Request) bool {
	if f.pending.Full(r) {
		f.fullAt = time.Now()
		f.world.Metrics.heldDropped.WithLabelValues("full").Inc()
		r.Done()
		return false
	}
	if earlier := f.pending.Get(r.Command.ID); earlier != nil && !earlier.IsOpen() {
		r.MarkCopy() // it came again after the outcome, which may be forgotten when the entry is applied
	}
	f.pending.Add(r)
	f.world.Metrics.held.Set(float64(f.pending.Len()))
	if !f.onlyHolder() { // otherwise a request that is not answered when the node ends has to come again
		r.Done()
		r.Done = func() {}
	}
	return true
}

// keeps reports whether a node that does not lead holds the request. In a cluster of one it is the only node to have it. It needs Front.mu.
func (f *Front) keeps(r *pending.Request) bool {
	if f.onlyHolder() {
		return true
	}
	if r.Command.ID.IsZero() {
		return false
	}
	if earlier := f.pending.Get(r.Command.ID); earlier != nil {
		if earlier.Outcome == 0 { // one copy is enough
			earlier.Absorb(r)
			return false
		}
		if !earlier.State.IsHeld() { // the store has it, and gives it back: then it stands for the client that asks again
			earlier.Absorb(r)
			earlier.Outcome, earlier.State = 0, pending.StateRepeating
			return false
		}
		f.end(earlier) // the client asks again for an outcome that may be published, but did not reach it
		return true
	}
	index, known := f.pending.Hints.ArrivedEarly(r.Command.ID, r.Arrived)
	if known && index <= f.mark {
		return false // answered before it came
	}
	r.Commit(index)
	return true
}

// end removes a request. It needs Front.mu.
func (f *Front) end(r *pending.Request) {
	if !f.pending.Remove(r) {
		return
	}
	f.world.Metrics.held.Set(float64(f.pending.Len()))
	r.Done()
	f.room.Signal()
}
