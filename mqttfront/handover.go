package mqttfront

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// A node that comes to lead may lack requests that the others hold: it may have been restarted, or cut off from the broker.
// So it asks them, for at most collectTime, and takes up what is missing here. And while it leads it asks now and then for what
// passed it by: after the broker was restarted, the nodes' subscriptions come back one after the other, and a request in between
// reaches some of them only. It does not take what its own session may still deliver (ingest.Barrier): taken from another node, such a request
// could overtake earlier ones of its client.

const (
	collectTime = 200 * time.Millisecond
	// barrierTime bounds how long a new leader waits for a probe when other nodes hold requests that it lacks. If the leader cannot serve yet after
	// that, it asks the other nodes again.
	barrierTime = 200 * time.Millisecond
	// sweepInterval is how often a leader asks for what passed it by, and how long that has to have been held.
	sweepInterval = time.Second
)

// Held returns a page of the requests that this node holds, in the order of their arrival, from a cursor that begins at 0, and
// the next cursor, 0 at the end. With an age it leaves out what is younger, and what is known to have an outcome.
func (f *Front) Held(cursor uint64, age time.Duration) (page []byte, next uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pending.Page(cursor, age, time.Now())
}

// collection is what the other nodes hold, by node, each in its order.
type collection struct {
	mu     sync.Mutex
	byNode map[string][]*pending.Request
}

// collect asks the other nodes what they hold, and have held for as long as age.
func (f *Front) collect(ctx context.Context, age time.Duration) map[string][]*pending.Request {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	c := collection{byNode: make(map[string][]*pending.Request)}
	f.store.CollectHeld(ctx, age, func(node string, page []byte) {
		requests, err := pending.ReadPage(page, time.Now())
		if err != nil {
			f.world.Log.Warn("what another node holds cannot be read", "from", node, "error", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.byNode[node] = append(c.byNode[node], requests...)
	})
	for node, requests := range c.byNode {
		c.byNode[node] = withoutRepeats(requests)
	}
	return c.byNode
}

// withoutRepeats drops what comes again in a list: a node that puts its requests into another order meanwhile gives some of them twice.
func withoutRepeats(list []*pending.Request) []*pending.Request {
	known := make(map[fsm.RequestID]bool, len(list))
	return slices.DeleteFunc(list, func(r *pending.Request) bool {
		again := known[r.Command.ID]
		known[r.Command.ID] = true
		return again
	})
}

// heldElsewhere is what the other nodes hold.
type heldElsewhere struct {
	byNode map[string][]*pending.Request
	// received is a moment after this node received the answers. When the barrier has passed it, all of these requests are settled.
	received time.Time
}

// collectForTakeover returns what the other nodes hold. If this node lacks some of it, it sends a probe, and waits for that for barrierTime at most.
// Until the context ready ends, because the node can serve, it then asks again: what its own session brings meanwhile settles only what comes
// before the same request in another node's list.
func (f *Front) collectForTakeover(ctx, ready context.Context) (held heldElsewhere) {
	held.byNode = make(map[string][]*pending.Request)
	for again := false; ; again = true {
		maps.Copy(held.byNode, f.collect(ctx, 0)) // a node that does not answer now may have answered before
		held.received = time.Now()
		if !f.lacks(held.byNode) {
			return held
		}
		probing, cancel := context.WithTimeout(ctx, barrierTime)
		stop := func() bool { return true }
		if again { // barrierTime is over
			stop = context.AfterFunc(ready, cancel)
		}
		f.barrier.Await(probing, held.received)
		stop()
		cancel()
		if ctx.Err() != nil || ready.Err() != nil || f.barrier.Passed(held.received) {
			return held
		}
	}
}

// lacks reports whether other nodes hold something that this one does not.
func (f *Front) lacks(byNode map[string][]*pending.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, requests := range byNode {
		for _, r := range requests {
			if f.pending.Get(r.Command.ID) == nil {
				return true
			}
		}
	}
	return false
}

// keepSettledLocked leaves out the requests that this node's own session may still deliver.
func (f *Front) keepSettledLocked(m *fsm.Machine, byNode map[string][]*pending.Request) {
	barrier, begun := f.barrier.Reached(), f.session.Begun()
	for node, requests := range byNode {
		byNode[node] = f.pending.Settled(requests, barrier, begun, openIn(m))
	}
}

// openIn returns a function that reports whether nothing keeps a request from being executed, as far as is known of it and in a state.
func openIn(m *fsm.Machine) func(*pending.Request) bool {
	return func(r *pending.Request) bool {
		if !r.IsOpen() {
			return false
		}
		_, _, known := m.Remembered(r.Command.ID)
		return !known
	}
}

// takeUpHeld adds what the other nodes hold and this one does not, in each node's order for each client. It returns them in
// their order. f.mu is held.
func (l *leader) takeUpHeld(f *Front, m *fsm.Machine, byNode map[string][]*pending.Request) (added []*pending.Request) {
	published, now := m.Status().Published, time.Now()
	copies := make(map[fsm.RequestID]bool) // that any node knows as such
	for _, requests := range byNode {
		for _, r := range requests {
			if r.IsCopy() {
				copies[r.Command.ID] = true
			}
		}
	}
	var elsewhere [][]*pending.Request
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		elsewhere = append(elsewhere, slices.DeleteFunc(slices.Clone(byNode[node]), func(r *pending.Request) bool {
			if copies[r.Command.ID] {
				r.MarkCopy()
			}
			if here := f.pending.Get(r.Command.ID); here != nil {
				if r.IsCopy() && here.State.IsHeld() {
					here.MarkCopy()
				}
				return false
			}
			if r.Expired(now) { // deduplication may have forgotten it
				return true
			}
			_, index, known := m.Remembered(r.Command.ID)
			if !known && (r.IsCopy() && !r.Read || f.wasShed(r)) { // and it is forgotten, or that node does not know it yet
				l.report(f, r.Command.ID)
				return true
			}
			if known && index <= published && !r.IsCopy() { // answered: that node only does not know it yet
				l.report(f, r.Command.ID)
				return true
			}
			return false
		}))
	}
	added, full := f.pending.Merge(elsewhere, openIn(m))
	f.world.Metrics.heldDropped.WithLabelValues("full").Add(float64(full))
	f.world.Metrics.held.Set(float64(f.pending.Len()))
	if len(added) == 0 {
		return nil
	}
	f.world.Metrics.takenUp.Add(float64(len(added)))
	f.world.Log.Info("took up requests that only other nodes held", "requests", len(added))
	slices.SortFunc(added, func(a, b *pending.Request) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return added
}

// sweep takes up, until the context ends, what passed this node by while it leads.
func (f *Front) sweep(ctx context.Context, l *leader) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		f.sweepOnce(ctx, l)
	}
}

// sweepOnce takes up the requests that other nodes received before the barrier and that this node lacks.
func (f *Front) sweepOnce(ctx context.Context, l *leader) {
	at := f.barrier.Reached()
	if f.pushesBack.Load() || at.IsZero() {
		return // no room, or no probe has returned yet
	}
	byNode := f.collect(ctx, max(sweepInterval, time.Since(at)))
	if ctx.Err() != nil || len(byNode) == 0 {
		return
	}
	f.store.View(func(m *fsm.Machine) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.role != role(l) {
			return
		}
		f.keepSettledLocked(m, byNode)
		for _, r := range l.takeUpHeld(f, m, byNode) {
			l.execute(f, r, false)
		}
		f.store.Flush()
	})
}
