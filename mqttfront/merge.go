package mqttfront

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"time"

	"holdfast/fsm"
)

// merge puts requests that other nodes hold, each list in that node's order, among those that are held here. It returns those that were
// missing here, and how many more there was no room for.
//
// Only an open request, one without an outcome, needs a place among those of its client, and only open requests say where another one
// belongs: of one that is done, one node may hold the original and the other a copy that its client sent later. All else stands by the
// time of its arrival.
func (p *pending) merge(elsewhere [][]*request, open func(*request) bool) (added []*request, full int) {
	here := slices.Collect(p.all())
	affected := make(map[string]bool) // clients with a request that did not come by this node's own session
	for _, r := range here {
		if r.elsewhere && r.state.isHeld() && open(r) { // the nodes that are asked now may know better where it belongs
			affected[r.ordering()] = true
		}
	}
	var names map[string]string // made when the first request is missing: before any is added
	for i, list := range elsewhere {
		elsewhere[i] = slices.DeleteFunc(slices.Clone(list), func(r *request) bool {
			if _, held := p.byID[r.Command.ID]; held {
				return false
			}
			if p.full(r) {
				full++
				return true
			}
			if names == nil {
				names = p.clientNames(elsewhere)
			}
			r.client = names[r.ordering()] // reads of the client that come here wait for its writes
			p.add(r)
			affected[r.ordering()] = true
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
func evidence(here []*request, elsewhere [][]*request) (lists [][]*request) {
	received := make(map[fsm.RequestID]bool)
	for _, r := range here {
		received[r.Command.ID] = received[r.Command.ID] || !r.elsewhere
	}
	for _, list := range elsewhere {
		for _, r := range list {
			received[r.Command.ID] = received[r.Command.ID] || !r.secondHand
		}
	}
	without := func(list []*request, taken func(*request) bool) []*request {
		return slices.DeleteFunc(slices.Clone(list), func(r *request) bool { return taken(r) && received[r.Command.ID] })
	}
	lists = append(lists, without(here, func(r *request) bool { return r.elsewhere }))
	for _, list := range elsewhere {
		lists = append(lists, without(list, func(r *request) bool { return r.secondHand }))
	}
	return lists
}

// clientNames returns the names that clients have here, by the names that other nodes give them. Nodes whose identity settings differ, as while a
// change is rolled out, name a client differently. A name stands for a client here if all requests that both nodes hold agree; otherwise it has none.
func (p *pending) clientNames(elsewhere [][]*request) map[string]string {
	const ambiguous = ""
	names := make(map[string]string)
	for _, list := range elsewhere {
		for _, r := range list {
			here := p.byID[r.Command.ID]
			if here == nil {
				continue
			}
			there, name := r.ordering(), here.ordering()
			if known, ok := names[there]; ok && known != name {
				name = ambiguous
			}
			names[there] = name
		}
	}
	return names
}

// client returns the key of a request's client: the one of the copy that is held here, if there is one.
func (p *pending) client(r *request) string {
	if here := p.byID[r.Command.ID]; here != nil {
		r = here
	}
	return r.ordering()
}

// arrange puts all that is held into its order: that of the affected clients as all the nodes' lists say, that of the others as it is, and
// between clients by the time of arrival.
func (p *pending) arrange(all []*request, lists [][]*request, affected map[string]bool, open func(*request) bool) {
	parts := make(map[string][][]*request) // by client: what each node holds of it
	for _, list := range lists {
		part := make(map[string][]*request)
		for _, r := range list {
			if key := p.client(r); affected[key] && open(r) && p.isOpenHere(r, open) {
				part[key] = append(part[key], r)
			}
		}
		for key, requests := range part {
			parts[key] = append(parts[key], requests)
		}
	}
	ordered := make([]*request, 0, len(all))
	rank := make(map[*request]time.Time, len(all)) // ascends along each client's order
	rankInOrder := func(requests []*request) {
		var latest time.Time
		for _, r := range requests {
			if latest.Before(r.arrived) {
				latest = r.arrived
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
	var rest []*request
	for _, r := range all {
		if _, ranked := rank[r]; !ranked {
			rest = append(rest, r)
		}
	}
	rankInOrder(rest)
	slices.SortStableFunc(ordered, func(a, b *request) int { return rank[a].Compare(rank[b]) })
	for _, r := range ordered {
		p.order.MoveToBack(r.element)
	}
}

// isOpenHere reports whether the copy of a request that is held here, if that is another, is open, too, and the first one here.
func (p *pending) isOpenHere(r *request, open func(*request) bool) bool {
	if r.Command.ID.IsZero() {
		return true
	}
	here := p.byID[r.Command.ID]
	return here == r || r.element == nil && open(here)
}

// mergeOrder returns the order in which one client sent its open requests. Each list is what one node holds, in the order of arrival there. A
// list may lack requests, and may hold a later copy of a request in place of the original. If the client sent two requests once each and
// one list has both, they keep the order of that list. Where no list orders two requests, the one that arrived first goes first.
// Of a request that several lists hold, the one of the first list is returned.
//
// A copy that was sent later than the one that another node holds says nothing of where its request stands. The broker counts down a message's
// expiry while it waits, in whole seconds: so deadlines tell which was sent later, to within a second, however much a session lags. Where the lists
// contradict each other, the copy goes that looks latest; of several, the one that stands behind most of the requests that come after it elsewhere.
func mergeOrder(lists [][]*request) []*request {
	const rounds = 50 // each takes time in proportion to the number of requests; what contradicts itself more often is left as it arrived
	m := newMerging(lists)
	m.dropLate()
	for round := 0; ; round++ {
		ordered, stuck := m.sort()
		if len(stuck) == 0 {
			return ordered
		}
		if round == rounds || !m.dropLatest(stuck) {
			slices.SortStableFunc(stuck, func(a, b *mergeNode) int { return a.arrived.Compare(b.arrived) })
			for _, n := range stuck {
				ordered = append(ordered, n.request)
			}
			return ordered
		}
	}
}

// merging is a graph of requests, each with an edge to what followed it on some node.
type merging struct {
	lists [][]*mergeNode
	order []*mergeNode // all, as they were found
	// counted says that mergeCopy.overtaken is set.
	counted bool
}

// recount is up to how many requests that contradict each other are counted again when one was left out. Of more, the first count has to do.
const recount = 4096

type mergeNode struct {
	request *request
	arrived time.Time    // at the earliest
	sent    time.Time    // a measure of when the earliest copy was sent
	copies  []mergeCopy  // one for each list that says where the request stands
	next    []*mergeNode // rebuilt for each attempt
	left    int          // how many come before it
	index   int
}

// mergeCopy is a request in one of the lists.
type mergeCopy struct {
	list int
	sent time.Time
	// overtaken counts the requests before the copy in its list that stand behind the request in another list.
	overtaken int
}

func newMerging(lists [][]*request) *merging {
	m := &merging{lists: make([][]*mergeNode, len(lists))}
	byID := make(map[fsm.RequestID]*mergeNode)
	for i, list := range lists {
		for _, r := range list {
			n := byID[r.Command.ID]
			if n == nil || r.Command.ID.IsZero() { // without an id, it is one of its own
				n = &mergeNode{request: r, arrived: r.arrived, sent: r.sent, index: len(m.order)}
				byID[r.Command.ID] = n
				m.order = append(m.order, n)
			}
			if k := len(n.copies); k > 0 && n.copies[k-1].list == i {
				continue // the first one says where it stands
			}
			if r.arrived.Before(n.arrived) {
				n.arrived = r.arrived
			}
			if r.sent.Before(n.sent) {
				n.sent = r.sent
			}
			n.copies = append(n.copies, mergeCopy{list: i, sent: r.sent})
			m.lists[i] = append(m.lists[i], n)
		}
	}
	return m
}

// sort returns the requests in an order along all edges, and those for which there is none.
func (m *merging) sort() (ordered []*request, stuck []*mergeNode) {
	for _, n := range m.order {
		n.next, n.left = nil, 0
	}
	for i, list := range m.lists {
		var last *mergeNode
		for _, n := range list {
			if !n.standsIn(i) {
				continue
			}
			if last != nil {
				last.next = append(last.next, n)
				n.left++
			}
			last = n
		}
	}
	var ready mergeHeap
	for _, n := range m.order {
		if n.left == 0 {
			ready = append(ready, n)
		}
	}
	heap.Init(&ready)
	for len(ready) > 0 {
		n := heap.Pop(&ready).(*mergeNode)
		ordered = append(ordered, n.request)
		for _, next := range n.next {
			if next.left--; next.left == 0 {
				heap.Push(&ready, next)
			}
		}
	}
	for _, n := range m.order {
		if n.left > 0 {
			stuck = append(stuck, n)
		}
	}
	return ordered, stuck
}

func (n *mergeNode) standsIn(list int) bool {
	return slices.ContainsFunc(n.copies, func(c mergeCopy) bool { return c.list == list })
}

// lateness returns how much later the copies of a list look than the earliest copies of the same requests, in ascending order.
func (m *merging) lateness(list int) (late []time.Duration) {
	for _, n := range m.lists[list] {
		for _, c := range n.copies {
			if c.list == list && len(n.copies) > 1 {
				late = append(late, c.sent.Sub(n.sent))
			}
		}
	}
	slices.Sort(late)
	return late
}

// dropLate leaves out the copies that were surely sent later. All that a list holds may look later, because its deadlines were rounded; what
// was sent again looks later than the rest.
func (m *merging) dropLate() {
	const rounding = 1500 * time.Millisecond
	for i, list := range m.lists {
		late := m.lateness(i)
		if len(late) == 0 {
			continue
		}
		for _, n := range list {
			n.copies = slices.DeleteFunc(n.copies, func(c mergeCopy) bool {
				return c.list == i && len(n.copies) > 1 && c.sent.Sub(n.sent)-late[0] > rounding
			})
		}
	}
}

// biases returns for each list by how much what it holds looks later than elsewhere, as a rule.
func (m *merging) biases() []time.Duration {
	biases := make([]time.Duration, len(m.lists))
	for i := range m.lists {
		if late := m.lateness(i); len(late) > 0 {
			biases[i] = late[(len(late)-1)/2]
		}
	}
	return biases
}

// suspicion is what speaks for it that a copy was sent later than another one.
type suspicion struct {
	overtaken int
	after     time.Duration // by how much later it looks
}

// compare orders copies by whether they contradict another list at all, then by how much later they look, then by how much they contradict.
func (s suspicion) compare(other suspicion) int {
	const precision = 100 * time.Millisecond // of the lags of sessions
	return cmp.Or(cmp.Compare(min(s.overtaken, 1), min(other.overtaken, 1)), cmp.Compare(s.after.Round(precision), other.after.Round(precision)),
		cmp.Compare(s.overtaken, other.overtaken), cmp.Compare(s.after, other.after))
}

// dropLatest leaves out the most suspicious copy, and reports whether there was any.
func (m *merging) dropLatest(among []*mergeNode) bool {
	if !m.counted || len(among) <= recount {
		m.countOvertaken(among)
		m.counted = true
	}
	biases := m.biases()
	var latest *mergeNode
	var worst suspicion
	at := 0
	for _, n := range among {
		for i, c := range n.copies {
			s := suspicion{overtaken: c.overtaken, after: c.sent.Sub(n.sent) - biases[c.list]}
			if len(n.copies) > 1 && (latest == nil || s.compare(worst) > 0) {
				latest, at, worst = n, i, s
			}
		}
	}
	if latest != nil {
		latest.copies = slices.Delete(latest.copies, at, at+1)
	}
	return latest != nil
}

// countOvertaken sets mergeCopy.overtaken of some requests, from their places among each other.
func (m *merging) countOvertaken(among []*mergeNode) {
	const absent = -1
	places := make([][]int, len(m.lists)) // by list and mergeNode.index
	for i := range places {
		places[i] = slices.Repeat([]int{absent}, len(m.order))
	}
	wanted, sizes := make([]bool, len(m.order)), make([]int, len(m.lists))
	for _, n := range among {
		wanted[n.index] = true
		for i := range n.copies {
			n.copies[i].overtaken = 0
		}
	}
	for i, list := range m.lists {
		for _, n := range list {
			if wanted[n.index] && n.standsIn(i) {
				places[i][n.index] = sizes[i]
				sizes[i]++
			}
		}
	}
	for i, list := range m.lists {
		for j := range m.lists {
			if i == j {
				continue
			}
			seen := make(fenwick, sizes[j]) // by place in list j
			for _, n := range list {
				place := places[j][n.index]
				if place == absent || places[i][n.index] == absent {
					continue
				}
				for k := range n.copies {
					if n.copies[k].list == i {
						n.copies[k].overtaken += seen.above(place)
					}
				}
				seen.add(place)
			}
		}
	}
}

// fenwick counts numbers below its length (Fenwick, 1994).
type fenwick []int

func (f fenwick) add(number int) {
	for i := number; i < len(f); i |= i + 1 {
		f[i]++
	}
}

// above returns how many of the numbers that were added are greater.
func (f fenwick) above(number int) (count int) {
	for i := len(f) - 1; i >= 0; i = i&(i+1) - 1 {
		count += f[i]
	}
	for i := number; i >= 0; i = i&(i+1) - 1 {
		count -= f[i]
	}
	return count
}

// mergeHeap implements heap.Interface: the earliest arrival is first.
type mergeHeap []*mergeNode

// Len implements heap.Interface.
func (h mergeHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h mergeHeap) Less(i, j int) bool {
	return cmp.Or(h[i].arrived.Compare(h[j].arrived), cmp.Compare(h[i].index, h[j].index)) < 0
}

// Swap implements heap.Interface.
func (h mergeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *mergeHeap) Push(n any) { *h = append(*h, n.(*mergeNode)) }

// Pop implements heap.Interface.
func (h *mergeHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
