package replica

import "sync"

// hashes remembers the state's hash after each of the last entries, so that replicas with different applied indexes can be compared at one index.
type hashes struct {
	mu     sync.Mutex
	points [1 << 14]point
}

type point struct{ index, hash uint64 }

func (h *hashes) set(index, hash uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.points[index%uint64(len(h.points))] = point{index, hash}
}

func (h *hashes) at(index uint64) (uint64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.points[index%uint64(len(h.points))]
	return found.hash, found.index == index
}
