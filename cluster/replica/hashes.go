package replica

import "sync"

// hashes has the state's hash after each of at least the last 16,384 entries, so that replicas with
// different applied indexes can be compared at one index. No-ops, configurations and entries that a
// snapshot replaced have none. All methods are safe for concurrent use.
type hashes struct {
	mu    sync.Mutex
	slots [1 << 14]stateHash
}

type stateHash struct{ index, hash uint64 }

func (h *hashes) set(index, hash uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slots[index%uint64(len(h.slots))] = stateHash{index, hash}
}

// at returns the hash after the entry at an index. known is false if there is none.
func (h *hashes) at(index uint64) (hash uint64, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.slots[index%uint64(len(h.slots))]
	return found.hash, found.index == index
}
