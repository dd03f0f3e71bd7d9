package mqttfront

import (
	"context"
	"sync"
	"time"

	"holdfast/fsm"
)

// barrier is how far the node's own session has come: what reached the broker before it has come here, or will not come any more, as after a
// session was lost. A probe that comes back moves it to the moment at which the probe was sent. So what another node had before that, and this
// one lacks, may be taken from there; what came to the other one later may still be on its way, behind requests that go first.
// All methods are safe for concurrent use.
type barrier struct {
	ask chan struct{} // has room for one: a probe is wanted now

	mu    sync.Mutex
	at    time.Time     // zero before the first probe has come back
	moved chan struct{} // closed and replaced when at moves
}

func newBarrier() *barrier { return &barrier{ask: make(chan struct{}, 1), moved: make(chan struct{})} }

// pass moves the barrier. It never moves back.
func (b *barrier) pass(sent time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !sent.After(b.at) {
		return
	}
	b.at = sent
	close(b.moved)
	b.moved = make(chan struct{})
}

func (b *barrier) reached() time.Time {
	at, _ := b.state()
	return at
}

func (b *barrier) state() (at time.Time, moved <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at, b.moved
}

// await asks for a probe, and reports whether one that was sent at or after a moment came back before the context ended.
func (b *barrier) await(ctx context.Context, moment time.Time) bool {
	const rounding = time.Microsecond // of what a probe says
	select {
	case b.ask <- struct{}{}:
	default:
	}
	for {
		at, moved := b.state()
		if !at.Add(rounding).Before(moment) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-moved:
		}
	}
}

// settled returns of what another node holds, in its order, what this node's own session will not bring any more: what that node had before
// the barrier, and what it had before a request of the same client that came here by the own session. here is what this node holds.
func settled(list []*request, at time.Time, here map[fsm.RequestID]*request) (kept []*request) {
	const rounding = 1500 * time.Millisecond // of sent
	passed := make(map[string]int)           // by client: so many of the list came before something that has come here
	for i, r := range list {
		own, held := here[r.command.ID]
		if held && !own.elsewhere && r.sent.Sub(own.sent) < rounding { // else it is a copy that the client sent later
			passed[r.ordering()] = i + 1
		}
	}
	for i, r := range list {
		if r.arrived.Before(at) || i < passed[r.ordering()] {
			kept = append(kept, r)
		}
	}
	return kept
}
