package ingest

import (
	"context"
	"sync"
	"time"
)

// Barrier is the time up to which the ingest session has delivered all requests that the broker received, except for those that were lost with an earlier
// session. A probe is a message that a node sends to itself through the broker. When it returns, the barrier moves to the moment at which the probe was
// sent, because the broker keeps the order of what it puts into one session.
//
// A request that another node received before the barrier, and that this node lacks, will not arrive here any more: as the leader, this node takes it from
// that node. It takes no request that the other node received later: that one may still arrive here, in its client's order.
//
// All methods are safe for concurrent use.
type Barrier struct {
	ask chan struct{} // capacity 1; an element asks for a probe now

	mu    sync.Mutex
	at    time.Time     // zero until the first probe has returned
	moved chan struct{} // closed and replaced when at moves
}

// NewBarrier returns a barrier whose position is the zero time.
func NewBarrier() *Barrier { return &Barrier{ask: make(chan struct{}, 1), moved: make(chan struct{})} }

// Advance moves the barrier to the moment at which a probe was sent. It never moves back.
func (b *Barrier) Advance(sent time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !sent.After(b.at) {
		return
	}
	b.at = sent
	close(b.moved)
	b.moved = make(chan struct{})
}

// Position returns where the barrier is, and the zero time until the first probe has returned.
func (b *Barrier) Position() time.Time {
	at, _ := b.state()
	return at
}

func (b *Barrier) state() (at time.Time, moved <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at, b.moved
}

// HasReached reports whether the barrier is at a moment or after it.
func (b *Barrier) HasReached(moment time.Time) bool { return reached(b.Position(), moment) }

func reached(at, moment time.Time) bool {
	const rounding = time.Microsecond // a probe carries its time in whole microseconds
	return !at.Add(rounding).Before(moment)
}

// Asked returns the channel on which Await asks for a probe.
func (b *Barrier) Asked() <-chan struct{} { return b.ask }

// Await asks for a probe. It waits for the return of a probe that was sent no earlier than moment, or until the context ends.
func (b *Barrier) Await(ctx context.Context, moment time.Time) {
	select {
	case b.ask <- struct{}{}:
	default:
	}
	for {
		at, moved := b.state()
		if reached(at, moment) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		}
	}
}
