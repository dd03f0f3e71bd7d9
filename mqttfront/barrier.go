package mqttfront

import (
	"context"
	"sync"
	"time"

	"holdfast/fsm"
)

// barrier is a moment such that the node's own session has delivered every request that the broker received before it, except for those that were
// lost with an earlier session. A probe that returns moves the barrier to the moment at which the probe was sent, because the broker keeps the
// order of what it puts into one session.
//
// A request that another node received before the barrier, and that this node lacks, is missing here for good, and is taken from that node. A
// request that another node received later may still be in this node's session, behind earlier requests of the same client.
//
// All methods are safe for concurrent use.
type barrier struct {
	ask chan struct{} // capacity 1; an element asks for a probe now

	mu    sync.Mutex
	at    time.Time     // zero until the first probe has returned
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

// passes reports whether a barrier is at a moment or after it.
func passes(at, moment time.Time) bool {
	const rounding = time.Microsecond // of the time in a probe
	return !at.Add(rounding).Before(moment)
}

// await asks for a probe, and returns when one that was sent at a moment or after it has returned, or the context ends.
func (b *barrier) await(ctx context.Context, moment time.Time) {
	select {
	case b.ask <- struct{}{}:
	default:
	}
	for {
		at, moved := b.state()
		if passes(at, moment) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		}
	}
}

// settled returns those of another node's requests, in its order, that this node's own session cannot deliver any more: those that the other node
// received before the barrier, and those that stand before a request of the same client that both nodes received themselves. here holds the requests of
// this node, by id.
func settled(list []*request, at time.Time, here map[fsm.RequestID]*request) (kept []*request) {
	const rounding = 1500 * time.Millisecond // of request.sent
	passed := make(map[string]int)           // by client: the length of the part of the list that is settled
	for i, r := range list {
		own, held := here[r.Command.ID]
		if held && !own.elsewhere && !r.secondHand && r.sent.Sub(own.sent) < rounding { // otherwise the client sent this copy later
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
