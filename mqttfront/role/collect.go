package role

import (
	"context"
	"slices"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// A new leader may lack requests that other nodes hold: it may have restarted, or the broker may have been unreachable. It asks the other nodes for them, for
// at most collectTime, and merges those that it lacks.
//
// While it leads, it asks again every sweepInterval. After a restart of the broker the nodes subscribe again one after the other, so a request may reach some
// of them only. The leader does not merge a request that its own session may still deliver (ingest.Barrier): the merged copy could overtake earlier requests of
// the same client.

const (
	// collectTime bounds how long a leader waits for the other nodes' answers.
	collectTime = 200 * time.Millisecond
	// barrierTime bounds how long a new leader waits for a probe when other nodes hold requests that it lacks. After that it asks the other nodes again, if
	// its publishing connections are not up yet.
	barrierTime = 200 * time.Millisecond
	// sweepInterval is the time between two sweeps of a leader. A sweep takes only requests that other nodes have held for at least this long.
	sweepInterval = time.Second
)

// PeerRequests are the requests that peers hold.
type PeerRequests struct {
	byNode map[string][]*pending.Request
	// received is a moment after the answers arrived. When the barrier has passed it, this node's own session has delivered all of these requests that it will.
	received time.Time
}

// collection has the requests that the other nodes hold: by node, in the order of the node's buffer.
type collection struct {
	mu       sync.Mutex
	byNode   map[string][]*pending.Request
	complete map[string]bool // nodes that sent all pages
}

// collect asks the other nodes what they have held for at least age.
func (l *Leader) collect(ctx context.Context, age time.Duration) *collection {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	asked := time.Now()
	c := &collection{byNode: make(map[string][]*pending.Request), complete: make(map[string]bool)}
	l.store.CollectHeld(ctx, age, func(node string, page []byte, last bool) {
		requests, err := pending.ReadPage(page, asked, time.Now())
		if err != nil {
			l.log.Warn("what another node holds cannot be read", "from", node, "error", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.byNode[node], c.complete[node] = append(c.byNode[node], requests...), last
	})
	for node, requests := range c.byNode { // without the lock: CollectHeld makes no call after it has returned
		c.byNode[node] = withoutRepeats(requests)
	}
	return c
}

// update replaces each node's list by a later one. If a node has not sent all pages of the later list, the rest of the earlier list follows them.
func (p *PeerRequests) update(later *collection) {
	for node, list := range later.byNode {
		if !later.complete[node] {
			list = append(list, restAfter(list, p.byNode[node])...)
		}
		p.byNode[node] = list
	}
}

// restAfter returns what may follow the first pages of a later list: the requests of the earlier list behind the last one that the pages have. A node appends at
// the end and removes anywhere. So it has removed what comes before that one and is not in the pages, and the whole earlier list if they have nothing in common.
// If the pages have the requests in another order, or there are no pages, restAfter returns all requests of the earlier list that the pages lack.
func restAfter(firstPages, earlier []*pending.Request) []*pending.Request {
	sent := make(map[fsm.RequestID]int, len(firstPages)) // positions, from 1 on
	for i, r := range firstPages {
		sent[r.Command.ID] = i + 1
	}
	end, last, reordered := len(earlier), 0, len(firstPages) == 0
	for i, r := range earlier {
		if position := sent[r.Command.ID]; position > 0 {
			reordered = reordered || position < last
			end, last = i+1, position
		}
	}
	if !reordered {
		return earlier[end:]
	}
	return slices.DeleteFunc(slices.Clone(earlier), func(r *pending.Request) bool { return sent[r.Command.ID] > 0 })
}

// withoutRepeats keeps only the first of several copies of a request. A node that reorders its requests between two pages sends some of them twice.
func withoutRepeats(list []*pending.Request) []*pending.Request {
	known := make(map[fsm.RequestID]bool, len(list))
	return slices.DeleteFunc(list, func(r *pending.Request) bool {
		again := known[r.Command.ID]
		known[r.Command.ID] = true
		return again
	})
}

// CollectFromPeers returns the requests that other nodes hold. If this node lacks any of them, it asks for a probe, a message to itself through the broker. It
// waits, for at most barrierTime, for a probe that was sent after the collection: behind it, this node has received all that the broker had then. It repeats both
// until such a probe has returned, or until the publishing connections are up, which ends untilConnected, a child of ctx: the leader cannot serve before. It
// collects anew each time, because peers may have received more requests. A request that has arrived here since may also be needed to order the others
// (pending.Buffer.Settled).
func (l *Leader) CollectFromPeers(ctx, untilConnected context.Context) (held PeerRequests) {
	held.byNode = make(map[string][]*pending.Request)
	waiting := ctx
	for {
		held.update(l.collect(ctx, 0)) // the list of a node that does not answer now stays
		held.received = time.Now()
		if !l.lacks(held.byNode) {
			return held
		}
		probing, cancel := context.WithTimeout(waiting, barrierTime)
		l.barrier.Await(probing, held.received)
		cancel()
		if untilConnected.Err() != nil || l.barrier.HasReached(held.received) {
			return held
		}
		waiting = untilConnected
	}
}

// lacks reports whether a peer holds a request that this node lacks and that mayMerge accepts.
func (l *Leader) lacks(byNode map[string][]*pending.Request) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, requests := range byNode {
		for _, r := range requests {
			if l.pending.Get(r.Command.ID) == nil && mayMerge(r, now) {
				return true
			}
		}
	}
	return false
}

// sweep calls sweepOnce every sweepInterval until the context ends.
func (l *Leader) sweep(ctx context.Context) {
	every(ctx, sweepInterval, func(time.Time) { l.sweepOnce(ctx) })
}

// sweepOnce merges and executes the requests that other nodes received before the barrier and that this node lacks.
func (l *Leader) sweepOnce(ctx context.Context) {
	at := l.barrier.Position()
	if l.blocked.Load() || at.IsZero() {
		return // no room, or no probe has returned yet
	}
	byNode := l.collect(ctx, max(sweepInterval, time.Since(at))).byNode
	if ctx.Err() != nil || len(byNode) == 0 {
		return
	}
	l.store.View(func(m *fsm.Machine) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.leading {
			return
		}
		l.dropUnsettledLocked(m, byNode)
		for _, r := range l.mergePeerRequestsLocked(m, byNode) {
			l.executeLocked(r, false)
		}
		l.store.Flush()
	})
}
