package mqttfront

import (
	"context"
	"slices"
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
	for !f.stopped && (f.serving != nil && f.busy >= f.config.Executing || (f.serving != nil || alone) && f.full(r)) {
		f.pushesBack.Store(true)
		f.store.Flush()
		f.room.Wait()
	}
	f.pushesBack.Store(false)
	f.unlooked = f.unlooked || !looked && f.serving == nil
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
	if f.serving == nil && f.backlog.Load() && !f.hints.endedAt(r.command.ID, endShed).IsZero() { // an old copy of what was shed
		published = true
	}
	if f.serving == nil && (published || !f.keeps(r, alone)) {
		r.done()
		return
	}
	if f.full(r) {
		f.fullAt = time.Now()
		f.world.Metrics.heldDropped.WithLabelValues("full").Inc()
		r.done()
		return
	}
	f.sequence++
	r.sequence = f.sequence
	r.element = f.held.PushBack(r)
	f.heldBytes += r.size
	f.world.Metrics.held.Set(float64(f.held.Len()))
	if !r.command.ID.IsZero() {
		f.byID[r.command.ID] = r
	}
	if !alone { // else a request that is not answered when the node dies has to come again: nobody else has it
		r.done()
		r.done = func() {}
	}
	switch {
	case f.serving != nil && f.serving.open:
		f.execute(r, true)
	case f.serving == nil && r.outcome != 0:
		f.addKnown(r)
	}
}

// addKnown notes that the outcome of a held request is applied and not yet known to be published. f.mu is held.
func (f *Front) addKnown(r *request) {
	at := len(f.known)
	for at > 0 && f.known[at-1].index > r.outcome {
		at--
	}
	f.known = slices.Insert(f.known, at, knownOutcome{r, r.outcome})
}

// knownOutcome is a held request with the index of the entry that has its outcome.
type knownOutcome struct {
	request *request
	index   uint64
}

// sole reports whether nobody but this node and the broker has the requests that come here.
func (f *Front) sole() bool { return f.config.FollowLeader || f.store.Alone() }

// full reports whether there is no room to keep a request. A single one always finds room. f.mu is held.
func (f *Front) full(r *request) bool {
	return f.held.Len() > 0 && (f.heldBytes+r.size > f.config.HoldBytes || f.held.Len() >= f.config.HoldMessages)
}

// keeps reports whether a node that does not lead keeps the request. In a cluster of one it is the only node to have it.
func (f *Front) keeps(r *request, alone bool) bool {
	if alone {
		return true
	}
	if r.command.ID.IsZero() {
		return false
	}
	if earlier, held := f.byID[r.command.ID]; held {
		if earlier.outcome == 0 { // one copy is enough
			earlier.absorb(r)
			return false
		}
		f.end(earlier) // the client asks again for an outcome that may be published, but did not reach it
		return true
	}
	index, known := f.hints.arrived(r.command.ID, r.arrived)
	if known && index <= f.mark {
		return false // answered before it came
	}
	r.outcome = index
	return true
}

// end lets go of a request. f.mu is held.
func (f *Front) end(r *request) {
	if r.state == stateEnded {
		return
	}
	r.state = stateEnded
	f.held.Remove(r.element)
	f.heldBytes -= r.size
	f.world.Metrics.held.Set(float64(f.held.Len()))
	if f.byID[r.command.ID] == r {
		delete(f.byID, r.command.ID)
	}
	r.done()
	f.room.Signal()
}
