package pending

import (
	"maps"
	"slices"
	"time"

	"holdfast/fsm"
)

// Merge adds to the buffer the requests of other nodes that it lacks. byNode has each node's buffer, in its order. Merge returns the added requests, and
// how many copies it dropped because the buffer was full. open reports whether a request is open (it may still be executed) and the state has no outcome
// for it.
//
// Only open requests get a new position, and only their positions are evidence of the order. An answered request is no evidence: its client may
// have sent it again, and one node may hold the original and another the copy. All other requests keep their order.
func (p *Buffer) Merge(byNode map[string][]*Request, open func(*Request) bool) (added []*Request, full int) {
	nodes := slices.Sorted(maps.Keys(byNode))
	elsewhere := make([][]*Request, len(nodes))
	for i, node := range nodes {
		elsewhere[i] = byNode[node]
	}
	here := slices.Collect(p.All())
	affected := make(map[string]bool) // client keys whose order is computed again
	for _, r := range here {
		if r.FromPeer && r.state.IsHeld() && open(r) { // a peer may have received it itself: its place in that list is better
			affected[r.ClientKey()] = true
		}
	}
	for i, node := range nodes {
		p.findContradictions(node, elsewhere[i], open, affected)
	}
	var localKeys map[string]string  // by the client key of a peer: this node's key of the client. It is computed before the first Add changes the buffer
	dropped := make(map[string]bool) // by client key: a request of the client found no room, so its later ones are dropped, too
	for i, list := range elsewhere {
		elsewhere[i] = slices.DeleteFunc(slices.Clone(list), func(r *Request) bool {
			if _, buffered := p.byID[r.Command.ID]; buffered {
				return false
			}
			if dropped[r.ClientKey()] || p.Full(r) {
				dropped[r.ClientKey()] = true
				full++
				return true
			}
			if localKeys == nil {
				localKeys = p.localClientKeys(elsewhere)
			}
			r.client = localKeys[r.ClientKey()] // so that the client's reads on this node wait for its writes; empty leaves the peer's key in force
			p.Add(r)
			affected[r.ClientKey()] = true
			added = append(added, r)
			return false
		})
	}
	if len(affected) > 0 {
		p.arrange(append(here, added...), evidence(here, elsewhere), affected, open)
		p.renumber()
	}
	return added, full
}

// findContradictions adds to clients the keys of clients whose open requests this node and another one received in different orders. Each node's
// contradiction about a request counts once in a leadership: a node sends the same list each time that the leader asks.
func (p *Buffer) findContradictions(node string, list []*Request, open func(*Request) bool, clients map[string]bool) {
	last := make(map[string]uint64) // by client: the highest sequence here among the requests of the list so far
	for _, r := range list {
		here := p.byID[r.Command.ID]
		if here == nil || r.Relayed || here.FromPeer || !open(here) || !open(r) {
			continue
		}
		key := here.ClientKey()
		if here.Sequence < last[key] && !slices.Contains(here.contradictedBy, node) {
			here.contradictedBy = append(here.contradictedBy, node)
			clients[key] = true
		}
		last[key] = max(last[key], here.Sequence)
	}
}

// BeginMerging is called when a leadership begins, before Merge: what other nodes said of the order in an earlier one does not count any more.
func (p *Buffer) BeginMerging() {
	for r := range p.All() {
		r.contradictedBy = nil
	}
}

// evidence returns the lists from which the send order is derived: this buffer and each peer's, in their order. A request is relayed in a list
// if its node has it from another node. It is left out of such a list if any node received it from the broker: a relayed request's position is an estimate.
func evidence(here []*Request, elsewhere [][]*Request) (lists [][]*Request) {
	received := make(map[fsm.RequestID]bool)
	for _, r := range here {
		received[r.Command.ID] = received[r.Command.ID] || !r.FromPeer
	}
	for _, list := range elsewhere {
		for _, r := range list {
			received[r.Command.ID] = received[r.Command.ID] || !r.Relayed
		}
	}
	withoutRelayed := func(list []*Request, relayed func(*Request) bool) []*Request {
		return slices.DeleteFunc(slices.Clone(list), func(r *Request) bool { return relayed(r) && received[r.Command.ID] })
	}
	lists = append(lists, withoutRelayed(here, func(r *Request) bool { return r.FromPeer }))
	for _, list := range elsewhere {
		lists = append(lists, withoutRelayed(list, func(r *Request) bool { return r.Relayed }))
	}
	return lists
}

// localClientKeys maps the client keys that other nodes use to those that this node uses. Nodes whose identity settings differ, as while a
// change is rolled out, use different keys for one client. A key is mapped if all requests that both nodes hold agree; otherwise it maps to nothing.
func (p *Buffer) localClientKeys(elsewhere [][]*Request) map[string]string {
	const ambiguous = ""
	keys := make(map[string]string)
	for _, list := range elsewhere {
		for _, r := range list {
			here := p.byID[r.Command.ID]
			if here == nil {
				continue
			}
			there, key := r.ClientKey(), here.ClientKey()
			if known, ok := keys[there]; ok && known != key {
				key = ambiguous
			}
			keys[there] = key
		}
	}
	return keys
}

// localClientKey returns the key of a request's client: that of the copy in this buffer, if there is one.
func (p *Buffer) localClientKey(r *Request) string {
	if here := p.byID[r.Command.ID]; here != nil {
		r = here
	}
	return r.ClientKey()
}

// arrange reorders the buffer. Open requests of affected clients get the order that mergeOrder finds in the lists. All other requests keep their order.
// The two groups are interleaved by arrival time.
func (p *Buffer) arrange(all []*Request, lists [][]*Request, affected map[string]bool, open func(*Request) bool) {
	parts := make(map[string][][]*Request) // by client key: the requests of the client that each list has
	for _, list := range lists {
		part := make(map[string][]*Request)
		for _, r := range list {
			if key := p.localClientKey(r); affected[key] && open(r) && p.positionCounts(r, open) {
				part[key] = append(part[key], r)
			}
		}
		for key, requests := range part {
			parts[key] = append(parts[key], requests)
		}
	}
	ordered := make([]*Request, 0, len(all))
	rank := make(map[*Request]time.Time, len(all)) // the latest Arrived of the request and of those before it in its group: the time by which the groups are interleaved
	rankInOrder := func(requests []*Request) {
		var latest time.Time
		for _, r := range requests {
			if latest.Before(r.Arrived) {
				latest = r.Arrived
			}
			rank[r] = latest
			ordered = append(ordered, r)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(affected)) {
		merged := mergeOrder(parts[key])
		for i, r := range merged {
			if own, buffered := p.byID[r.Command.ID]; buffered {
				merged[i] = own
			}
		}
		rankInOrder(merged)
	}
	var rest []*Request
	for _, r := range all {
		if _, ranked := rank[r]; !ranked {
			rest = append(rest, r)
		}
	}
	rankInOrder(rest)
	slices.SortStableFunc(ordered, func(a, b *Request) int { return rank[a].Compare(rank[b]) })
	for _, r := range ordered {
		p.order.MoveToBack(r.element)
	}
}

// positionCounts reports whether a request's position may count. That of a request without an id always counts. This buffer may hold several
// copies of a request: the position of the one in byID counts. That of a peer's copy, which has no element, counts if the copy in byID is open.
func (p *Buffer) positionCounts(r *Request, open func(*Request) bool) bool {
	if r.Command.ID.IsZero() {
		return true
	}
	here := p.byID[r.Command.ID]
	return here == r || r.element == nil && open(here)
}

// maxLag bounds the time from the arrival of a request at the broker to its arrival at a node. Settled returns a request that takes longer only when the
// barrier has passed it.
const maxLag = 5 * time.Second

// Settled returns the requests of another node's buffer, in its order, that the leader need not wait for: its own session cannot deliver them any more.
// barrier is the time up to which that session has delivered all that the broker received. lostBefore is the time before which the session may have lost
// messages. An anchor is an open request that both nodes received from the broker, from one sending of its client. Settled returns a request
//
//   - that has an outcome;
//   - that the other node received before the barrier;
//   - or that precedes an anchor of its client in the list, and that the other node received before lostBefore + maxLag.
func (p *Buffer) Settled(list []*Request, barrier, lostBefore time.Time, open, hasOutcome func(*Request) bool) (settled []*Request) {
	anchorEnd := make(map[string]int) // by client: the index after the last anchor
	for i, r := range list {
		own, buffered := p.byID[r.Command.ID]
		if buffered && !own.FromPeer && !r.Relayed && open(own) && open(r) && r.EstimatedSendTime.Sub(own.EstimatedSendTime) < expiryRounding { // the estimates differ by less than their error: one sending
			anchorEnd[r.ClientKey()] = i + 1
		}
	}
	for i, r := range list {
		if hasOutcome(r) || r.Arrived.Before(barrier) || i < anchorEnd[r.ClientKey()] && r.Arrived.Before(lostBefore.Add(maxLag)) {
			settled = append(settled, r)
		}
	}
	return settled
}
