package fsm

import (
	"slices"

	"github.com/cespare/xxhash/v2"
)

// maxPinned bounds the pinned non-voters. It is far above the size of any cluster.
const maxPinned = 64

// Pinned reports whether an operator has pinned the member with this raft id as a non-voter.
func (m *Machine) Pinned(id string) bool {
	_, pinned := slices.BinarySearch(m.pinned, id)
	return pinned
}

// setPinned pins a raft id as a non-voter, or removes the pin. It fails if maxPinned ids are
// pinned.
func (m *Machine) setPinned(id string, wanted bool) Result {
	at, pinned := slices.BinarySearch(m.pinned, id)
	switch {
	case wanted && !pinned && len(m.pinned) >= maxPinned:
		return Result{Code: CodeError, Error: ErrorQuota}
	case wanted && !pinned:
		m.mixIntoStateHash('M', xxhash.Sum64String(id))
		// a copy: a snapshot may still read the old one
		m.pinned = slices.Insert(slices.Clone(m.pinned), at, id)
	case !wanted && pinned:
		m.mixIntoStateHash('m', xxhash.Sum64String(id))
		m.pinned = slices.Delete(slices.Clone(m.pinned), at, at+1)
	}
	return Result{}
}
