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
// order of every list. Where no list orders two requests, the one that arrived first goes first. Of a request that several lists hold, the one of
// the first list is returned.
//
// The position of a retransmitted copy is no evidence of the original order. A later deadline shows a later copy, to within 1.5 s, because brokers
// count down message expiry in whole seconds, however much a session lags. If the lists contradict each other, one copy is dropped at a time: of the
// copies that contradict another list the one with the latest deadline, and on a tie the one with the most contradictions.
func mergeOrder(lists [][]*Request) []*Request {
	const rounds = 50 // bounds the running time; after that the remaining requests are sorted by arrival
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

// recount bounds the requests in cycles for which overtaken is computed again after each dropped copy. Of more, it is computed once.
const recount = 4096

type mergeNode struct {
	request *Request
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
	// overtaken counts pairs of another request and another list: the request precedes this copy in its list, and follows it in the other list.
	overtaken int
}

func newMerging(lists [][]*Request) *merging {
	m := &merging{lists: make([][]*mergeNode, len(lists))}
	byID := make(map[fsm.RequestID]*mergeNode)
	for i, list := range lists {
		for _, r := range list {
			n := byID[r.Command.ID]
			if n == nil || r.Command.ID.IsZero() { // without an id, it is one of its own
				n = &mergeNode{request: r, arrived: r.Arrived, sent: r.Sent, index: len(m.order)}
				byID[r.Command.ID] = n
				m.order = append(m.order, n)
			}
			if k := len(n.copies); k > 0 && n.copies[k-1].list == i {
				continue // the first one says where it stands
			}
			if r.Arrived.Before(n.arrived) {
				n.arrived = r.Arrived
			}
			if r.Sent.Before(n.sent) {
				n.sent = r.Sent
			}
			n.copies = append(n.copies, mergeCopy{list: i, sent: r.Sent})
			m.lists[i] = append(m.lists[i], n)
		}
	}
	return m
}

// sort returns the requests in an order along all edges, and those for which there is none.
func (m *merging) sort() (ordered []*Request, stuck []*mergeNode) {
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
