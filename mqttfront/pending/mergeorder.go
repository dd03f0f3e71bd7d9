package pending

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"holdfast/fsm"
)

// mergeOrder returns the order in which one client sent its open requests. Each list is what one node holds, in the order of arrival there. A
// list may lack requests, and may hold a later copy of a request in place of the original. If no request was sent twice, the result keeps the
// order of every list. Among the requests whose predecessors in all lists are placed, the one that arrived first goes next. If several lists hold
// a request, the one of the first list is returned.
//
// The position of a copy that the client sent again is no evidence of the original order. dropResent ignores each copy whose BrokerReceivedAfter proves that
// it was sent again. If the lists still contradict each other, one copy at a time is ignored: the one that suspicion.compare ranks highest. EstimatedSendTime
// shows which copy looks later than the others of its list, to within expiryRounding.
func mergeOrder(lists [][]*Request) []*Request {
	const rounds = 50 // bounds the running time; after that the remaining requests are sorted by arrival
	m := newMergeGraph(lists)
	m.dropResent()
	for round := 0; ; round++ {
		ordered, unsorted := m.sort()
		if len(unsorted) == 0 {
			return ordered
		}
		if round == rounds || !m.dropMostSuspicious(unsorted) {
			slices.SortStableFunc(unsorted, func(a, b *mergeNode) int { return a.arrived.Compare(b.arrived) })
			for _, n := range unsorted {
				ordered = append(ordered, n.request)
			}
			return ordered
		}
	}
}

// mergeGraph has an edge from each request to the one that followed it on some node.
type mergeGraph struct {
	lists [][]*mergeNode
	order []*mergeNode // all nodes, in the order in which the lists were read
	// inversionsCounted says that mergeCopy.inversions is set.
	inversionsCounted bool
}

// maxRecount bounds the unsorted requests for which inversions are counted again after each dropped copy. Above it, they are
// counted once.
const maxRecount = 4096

type mergeNode struct {
	request    *Request
	arrived    time.Time    // earliest arrival of the copies
	sent       time.Time    // earliest EstimatedSendTime of the copies
	copies     []mergeCopy  // one for each list in which the position of the request counts
	successors []*mergeNode // rebuilt for each sort
	inDegree   int          // predecessors that are not sorted yet
	index      int          // position in mergeGraph.order
}

// mergeCopy is a request in one of the lists.
type mergeCopy struct {
	list int       // index in mergeGraph.lists
	sent time.Time // EstimatedSendTime of the copy
	// brokerReceivedAfter is a moment after which the broker received the copy.
	brokerReceivedAfter time.Time
	// inversions counts pairs of another request and another list: the other request stands before this copy in this list, and behind it in the other list.
	inversions int
}

func newMergeGraph(lists [][]*Request) *mergeGraph {
	m := &mergeGraph{lists: make([][]*mergeNode, len(lists))}
	byID := make(map[fsm.RequestID]*mergeNode)
	for i, list := range lists {
		for _, r := range list {
			n := byID[r.Command.ID]
			if n == nil || r.Command.ID.IsZero() { // each request without an id has a node of its own
				n = &mergeNode{request: r, arrived: r.Arrived, sent: r.EstimatedSendTime, index: len(m.order)}
				byID[r.Command.ID] = n
				m.order = append(m.order, n)
			}
			if k := len(n.copies); k > 0 && n.copies[k-1].list == i {
				continue // a second copy in the same list: the position of the first one counts
			}
			if r.Arrived.Before(n.arrived) {
				n.arrived = r.Arrived
			}
			if r.EstimatedSendTime.Before(n.sent) {
				n.sent = r.EstimatedSendTime
			}
			n.copies = append(n.copies, mergeCopy{list: i, sent: r.EstimatedSendTime, brokerReceivedAfter: r.BrokerReceivedAfter})
			m.lists[i] = append(m.lists[i], n)
		}
	}
	return m
}

// sort returns the requests in a topological order, and those in a cycle or behind one.
func (m *mergeGraph) sort() (ordered []*Request, unsorted []*mergeNode) {
	for _, n := range m.order {
		n.successors, n.inDegree = nil, 0
	}
	for i, list := range m.lists {
		var last *mergeNode
		for _, n := range list {
			if !n.standsIn(i) {
				continue
			}
			if last != nil {
				last.successors = append(last.successors, n)
				n.inDegree++
			}
			last = n
		}
	}
	var ready mergeHeap
	for _, n := range m.order {
		if n.inDegree == 0 {
			ready = append(ready, n)
		}
	}
	heap.Init(&ready)
	for len(ready) > 0 {
		n := heap.Pop(&ready).(*mergeNode)
		ordered = append(ordered, n.request)
		for _, next := range n.successors {
			if next.inDegree--; next.inDegree == 0 {
				heap.Push(&ready, next)
			}
		}
	}
	for _, n := range m.order {
		if n.inDegree > 0 {
			unsorted = append(unsorted, n)
		}
	}
	return ordered, unsorted
}

func (n *mergeNode) standsIn(list int) bool {
	return slices.ContainsFunc(n.copies, func(c mergeCopy) bool { return c.list == list })
}

// sendDelays returns how much later the copies of a list look than the earliest copies of the same requests, in ascending order.
func (m *mergeGraph) sendDelays(list int) (delays []time.Duration) {
	for _, n := range m.lists[list] {
		for _, c := range n.copies {
			if c.list == list && len(n.copies) > 1 {
				delays = append(delays, c.sent.Sub(n.sent))
			}
		}
	}
	slices.Sort(delays)
	return delays
}

// dropResent leaves out the copies that were sent again: the broker received them after some node had received the original. A copy from a session that
// lags also arrives late, but its BrokerReceivedAfter is early.
func (m *mergeGraph) dropResent() {
	const imprecise = 100 * time.Millisecond // how far the times of two nodes may differ
	for _, n := range m.order {
		n.copies = slices.DeleteFunc(n.copies, func(c mergeCopy) bool { return len(n.copies) > 1 && c.brokerReceivedAfter.Sub(n.arrived) > imprecise })
	}
}

// listDelay says how much later the copies of a list look than the earliest copies of the same requests: the minimum and the median.
type listDelay struct{ min, median time.Duration }

func (m *mergeGraph) listDelays() []listDelay {
	found := make([]listDelay, len(m.lists))
	for i := range m.lists {
		if delays := m.sendDelays(i); len(delays) > 0 {
			found[i] = listDelay{delays[0], delays[(len(delays)-1)/2]}
		}
	}
	return found
}

// suspicion is the evidence that a copy was sent later than the original.
type suspicion struct {
	inversions int
	// beyondRounding says that the copy looks later than the minimum of its list by more than the rounding of deadlines can explain.
	beyondRounding bool
	excess         time.Duration // by how much later it looks than the median of its list
}

// compare orders copies by whether they contradict another list at all, then by how much later they look, then by how much they contradict.
func (s suspicion) compare(other suspicion) int {
	const precision = 100 * time.Millisecond // to which the delays of sessions are known
	rank := func(s suspicion) (rank int) {
		if s.inversions > 0 {
			rank += 2
		}
		if s.beyondRounding {
			rank++
		}
		return rank
	}
	return cmp.Or(cmp.Compare(rank(s), rank(other)), cmp.Compare(s.excess.Round(precision), other.excess.Round(precision)),
		cmp.Compare(s.inversions, other.inversions), cmp.Compare(s.excess, other.excess))
}

// dropMostSuspicious leaves out the most suspicious copy of some requests, but never the only copy of a request. It reports whether there was one.
func (m *mergeGraph) dropMostSuspicious(among []*mergeNode) bool {
	if !m.inversionsCounted || len(among) <= maxRecount {
		m.countInversions(among)
		m.inversionsCounted = true
	}
	delays := m.listDelays()
	var worstNode *mergeNode
	var worst suspicion
	at := 0
	for _, n := range among {
		for i, c := range n.copies {
			delay := c.sent.Sub(n.sent)
			s := suspicion{inversions: c.inversions, beyondRounding: delay-delays[c.list].min > expiryRounding, excess: delay - delays[c.list].median}
			if len(n.copies) > 1 && (worstNode == nil || s.compare(worst) > 0) {
				worstNode, at, worst = n, i, s
			}
		}
	}
	if worstNode != nil {
		worstNode.copies = slices.Delete(worstNode.copies, at, at+1)
	}
	return worstNode != nil
}

// countInversions sets mergeCopy.inversions of the requests in among. Only the places of these requests count.
func (m *mergeGraph) countInversions(among []*mergeNode) {
	const absent = -1
	places := make([][]int, len(m.lists)) // by list and mergeNode.index
	for i := range places {
		places[i] = slices.Repeat([]int{absent}, len(m.order))
	}
	wanted, sizes := make([]bool, len(m.order)), make([]int, len(m.lists))
	for _, n := range among {
		wanted[n.index] = true
		for i := range n.copies {
			n.copies[i].inversions = 0
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
						n.copies[k].inversions += seen.above(place)
					}
				}
				seen.add(place)
			}
		}
	}
}

// fenwick is a Fenwick tree (1994): it counts numbers below its length.
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
