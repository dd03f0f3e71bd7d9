package mqttfront

import (
	"context"
	"time"
)

// admit takes a request in: a leader executes it, another node keeps it.
func (f *Front) admit(ctx context.Context, r *request) {
	looked, published := f.recognize(r)
	published = published && f.backlog.Load()
	f.mu.Lock()
	defer f.mu.Unlock()
	// Whoever answers, or is the only one to have a request, waits for room, and TCP pushes back.
	alone := f.sole()
	for !f.stopped && (f.serving != nil && f.busy >= f.config.Executing || (f.serving != nil || alone) && f.pending.full(r)) {
		f.pushesBack.Store(true)
		f.store.Flush()
		f.room.Wait()
	}
	f.pushesBack.Store(false)
	f.pending.needsLookup = f.pending.needsLookup || !looked && f.serving == nil
	if f.serving == nil && f.isStale(r) {
		f.world.Metrics.heldDropped.WithLabelValues("stale").Inc()
		return // not acknowledged: the session ends
	}
	if f.stopped || ctx.Err() != nil || f.config.FollowLeader && f.serving == nil {
		return // not acknowledged: the broker has it still
	}
	if r.redelivered && f.rejectRedelivery(r) {
		f.world.Metrics.heldDropped.WithLabelValues("outcome_unknown").Inc()
		r.done()
		return
	}
	if f.serving == nil && f.backlog.Load() && !f.pending.hints.endedAt(r.command.ID, endShed).IsZero() { // an old copy of what was shed
		published = true
	}
	if f.serving == nil && (published || !f.keeps(r, alone)) {
		r.done()
		return
	}
	if f.pending.full(r) {
		f.fullAt = time.Now()
		f.world.Metrics.heldDropped.WithLabelValues("full").Inc()
		r.done()
		return
	}
	if earlier, held := f.pending.byID[r.command.ID]; held && (earlier.outcome != 0 || earlier.effective || earlier.barred) {
		r.effective = true // it came again after the outcome, which may be forgotten when the entry is applied
	}
	f.pending.add(r)
	f.world.Metrics.held.Set(float64(f.pending.len()))
	if !alone { // else a request that is not answered when the node dies has to come again: nobody else has it
		r.done()
		r.done = func() {}
	}
	switch {
	case f.serving != nil && f.serving.open:
		f.execute(r, true)
	case f.serving == nil && r.outcome != 0:
		f.pending.addCommitted(r)
	}
}

// sole reports whether nobody but this node and the broker has the requests that come here.
func (f *Front) sole() bool { return f.config.FollowLeader || f.store.Alone() }

// keeps reports whether a node that does not lead keeps the request. In a cluster of one it is the only node to have it.
func (f *Front) keeps(r *request, alone bool) bool {
	if alone {
		return true
	}
	if r.command.ID.IsZero() {
		return false
	}
	if earlier, held := f.pending.byID[r.command.ID]; held {
		if earlier.outcome == 0 { // one copy is enough
			earlier.absorb(r)
			return false
		}
		if earlier.state != stateHeld { // the store has it, and gives it back: then it stands for the client that asks again
			earlier.absorb(r)
			earlier.outcome, earlier.effective = 0, true
			return false
		}
		f.end(earlier) // the client asks again for an outcome that may be published, but did not reach it
		return true
	}
	index, known := f.pending.hints.arrived(r.command.ID, r.arrived)
	if known && index <= f.mark {
		return false // answered before it came
	}
	r.outcome = index
	return true
}

// end lets go of a request. f.mu is held.
func (f *Front) end(r *request) {
	if !f.pending.remove(r) {
		return
	}
	f.world.Metrics.held.Set(float64(f.pending.len()))
	r.done()
	f.room.Signal()
}
