package mqttfront

import (
	"context"
	"time"
)

// admit takes a request in: a leader executes it, another node holds it.
func (f *Front) admit(ctx context.Context, r *request) {
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
func (f *Front) dropRedelivered(r *request) bool {
	if !r.redelivered || !f.rejectRedelivery(r) {
		return false
	}
	f.world.Metrics.heldDropped.WithLabelValues("outcome_unknown").Inc()
	r.done()
	return true
}

// hold adds a request to the pending ones, if there is room for it. It needs Front.mu.
func (f *Front) hold(r *request) bool {
	if f.pending.full(r) {
		f.fullAt = time.Now()
		f.world.Metrics.heldDropped.WithLabelValues("full").Inc()
		r.done()
		return false
	}
	if earlier, held := f.pending.byID[r.Command.ID]; held && !earlier.isOpen() {
		r.markCopy() // it came again after the outcome, which may be forgotten when the entry is applied
	}
	f.pending.add(r)
	f.world.Metrics.held.Set(float64(f.pending.len()))
	if !f.onlyHolder() { // otherwise a request that is not answered when the node ends has to come again
		r.done()
		r.done = func() {}
	}
	return true
}

// keeps reports whether a node that does not lead holds the request. In a cluster of one it is the only node to have it. It needs Front.mu.
func (f *Front) keeps(r *request) bool {
	if f.onlyHolder() {
		return true
	}
	if r.Command.ID.IsZero() {
		return false
	}
	if earlier, held := f.pending.byID[r.Command.ID]; held {
		if earlier.outcome == 0 { // one copy is enough
			earlier.absorb(r)
			return false
		}
		if !earlier.state.isHeld() { // the store has it, and gives it back: then it stands for the client that asks again
			earlier.absorb(r)
			earlier.outcome, earlier.state = 0, stateRepeating
			return false
		}
		f.end(earlier) // the client asks again for an outcome that may be published, but did not reach it
		return true
	}
	index, known := f.pending.hints.arrived(r.Command.ID, r.arrived)
	if known && index <= f.mark {
		return false // answered before it came
	}
	r.commit(index)
	return true
}

// end removes a request. It needs Front.mu.
func (f *Front) end(r *request) {
	if !f.pending.remove(r) {
		return
	}
	f.world.Metrics.held.Set(float64(f.pending.len()))
	r.done()
	f.room.Signal()
}
