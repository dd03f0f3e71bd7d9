package role

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// A new leader may lack requests that its peers hold: it may have been restarted, or cut off from the broker. It asks them, for
// at most collectTime, and takes up what it lacks. While it leads it asks again every sweepInterval: after the broker was
// restarted, the nodes' subscriptions come back one after the other, and a request in between reaches some of them only. It does not take what its own session may still deliver (ingest.Barrier): taken from another node, such a request
// could overtake earlier ones of its client.

const (
	collectTime = 200 * time.Millisecond
	// barrierTime bounds how long a new leader waits for a probe when other nodes hold requests that it lacks. If the leader cannot serve yet after
	// that, it asks the other nodes again.
	barrierTime = 200 * time.Millisecond
	// sweepInterval is how often a leader asks for requests that only peers hold, and for how long they must have held them.
	sweepInterval = time.Second
)

// PeerRequests are the requests that peers hold.
type PeerRequests struct {
	byNode map[string][]*pending.Request
	// received is a moment after this node received the answers. When the barrier has passed it, all of these requests are settled.
	received time.Time
}

// collection is what the other nodes hold, by node, each in its order.
type collection struct {
	mu     sync.Mutex
	byNode map[string][]*pending.Request
}

// collect asks the other nodes what they have held for at least age.
func (l *Leader) collect(ctx context.Context, age time.Duration) map[string][]*pending.Request {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	asked := time.Now()
	c := collection{byNode: make(map[string][]*pending.Request)}
	l.store.CollectHeld(ctx, age, func(node string, page []byte) {
		requests, err := pending.ReadPage(page, asked, time.Now())
		if err != nil {
			l.log.Warn("what another node holds cannot be read", "from", node, "error", err)
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

// CollectFromPeers returns the requests that peers hold. If this node lacks any of them, it sends a probe and waits for it,
// for barrierTime at most. It repeats both until the probe has returned or untilConnected, a child of ctx, ends. It must
// collect again, because a request that arrives here meanwhile settles only the requests before it in a peer's list.
func (l *Leader) CollectFromPeers(ctx, untilConnected context.Context) (held PeerRequests) {
	held.byNode = make(map[string][]*pending.Request)
	waiting := ctx
	for {
		maps.Copy(held.byNode, l.collect(ctx, 0)) // a node that does not answer now may have answered before
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

// sweep takes up, until the context ends, what passed this node by while it leads.
func (l *Leader) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		l.sweepOnce(ctx)
	}
}

// sweepOnce takes up the requests that other nodes received before the barrier and that this node lacks.
func (l *Leader) sweepOnce(ctx context.Context) {
	at := l.barrier.Position()
	if l.blocked() || at.IsZero() {
		return // no room, or no probe has returned yet
	}
	byNode := l.collect(ctx, max(sweepInterval, time.Since(at)))
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
