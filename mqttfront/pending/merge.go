package pending

import (
	"maps"
	"slices"
	"time"

	"holdfast/fsm"
)

// Merge adds to the buffer the requests of other nodes that it lacks. Each list is one node's buffer, in its order. It returns
// the added requests, and how many did not fit.
//
// Only open requests get a new position, and only open requests are evidence of the order: of an answered request one node may
// have the original and another a later copy. All other requests keep their order.
func (p *Buffer) Merge(elsewhere [][]*Request, open func(*Request) bool) (added []*Request, full int) {
	here := slices.Collect(p.All())
	affected := make(map[string]bool) // clients with a request that did not come by this node's own session
	for _, r := range here {
		if r.FromPeer && r.state.IsHeld() && open(r) { // the nodes that are asked now may know better where it belongs
			affected[r.ClientKey()] = true
		}
	}
	var names map[string]string // made when the first request is missing: before any is added
	for i, list := range elsewhere {
		elsewhere[i] = slices.DeleteFunc(slices.Clone(list), func(r *Request) bool {
			if _, held := p.byID[r.Command.ID]; held {
				return false
			}
			if p.Full(r) {
				full++
				return true
			}
			if names == nil {
				names = p.localClientKeys(elsewhere)
			}
			r.client = names[r.ClientKey()] // reads of the client that come here wait for its writes
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

// evidence returns what says in which order requests were sent: what each node holds, in its order. A node puts what it took from other nodes among its
// own as well as it can. The place of such a request does not count if one of these nodes received it itself; otherwise nothing better is known.
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
	without := func(list []*Request, taken func(*Request) bool) []*Request {
		return slices.DeleteFunc(slices.Clone(list), func(r *Request) bool { return taken(r) && received[r.Command.ID] })
	}
	lists = append(lists, without(here, func(r *Request) bool { return r.FromPeer }))
	for _, list := range elsewhere {
		lists = append(lists, without(list, func(r *Request) bool { return r.Relayed }))
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

// client returns the key of a request's client: the one of the copy that is held here, if there is one.
func (p *Buffer) client(r *Request) string {
	if here := p.byID[r.Command.ID]; here != nil {
		r = here
	}
	return r.ClientKey()
}

// arrange puts all that is held into its order: that of the affected clients as all the nodes' lists say, that of the others as it is, and
// between clients by the time of arrival.
func (p *Buffer) arrange(all []*Request, lists [][]*Request, affected map[string]bool, open func(*Request) bool) {
	parts := make(map[string][][]*Request) // by client: what each node holds of it
	for _, list := range lists {
		part := make(map[string][]*Request)
		for _, r := range list {
			if key := p.client(r); affected[key] && open(r) && p.isOpenHere(r, open) {
				part[key] = append(part[key], r)
			}
		}
		for key, requests := range part {
			parts[key] = append(parts[key], requests)
		}
	}
	ordered := make([]*Request, 0, len(all))
	rank := make(map[*Request]time.Time, len(all)) // ascends along each client's order
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
			if here, held := p.byID[r.Command.ID]; held {
				merged[i] = here
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

// isOpenHere reports whether the copy of a request that is held here, if that is another, is open, too, and the first one here.
func (p *Buffer) isOpenHere(r *Request, open func(*Request) bool) bool {
	if r.Command.ID.IsZero() {
		return true
	}
	here := p.byID[r.Command.ID]
	return here == r || r.element == nil && open(here)
}

// maxLag is how long a request may have been on its way to the node that has it. What takes longer is settled by a barrier.
const maxLag = 5 * time.Second

// Settled returns the requests in a list that this node's ingest session will not deliver any more. The list is another
// node's buffer in its order. A request is settled in two cases: the other node received it before the barrier; or it stands
// before an open request of the same client that both nodes received themselves, and arrived less than maxLag after
// lostBefore. This node may have lost requests that the broker received before lostBefore, and no later ones. A request that
// is done needs no order: it is returned whether or not it is settled, so that its client is answered now.
func (p *Buffer) Settled(list []*Request, barrier, lostBefore time.Time, open, done func(*Request) bool) (settled []*Request) {
	settledUpTo := make(map[string]int) // by client: the length of the part of the list that is settled
	for i, r := range list {
		own, held := p.byID[r.Command.ID]
		if held && !own.FromPeer && !r.Relayed && open(own) && open(r) && r.SendOrder.Sub(own.SendOrder) < expiryRounding { // otherwise the client sent this copy later
			settledUpTo[r.ClientKey()] = i + 1
		}
	}
	for i, r := range list {
		if done(r) || r.Arrived.Before(barrier) || i < settledUpTo[r.ClientKey()] && r.Arrived.Before(lostBefore.Add(maxLag)) {
			settled = append(settled, r)
		}
	}
	return settled
}
