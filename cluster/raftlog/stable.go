package raftlog

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// StableStore ends the process when a call of the stable store fails or takes too long: a vote that is written after the
// node was given up for dead would land on top of a newer one.
type StableStore struct {
	raft.StableStore
	guard Guard
	terms sync.Mutex
}

// NewStableStore returns a stable store whose calls are guarded.
func NewStableStore(store raft.StableStore, guard Guard) *StableStore {
	return &StableStore{StableStore: store, guard: guard}
}

// Set implements raft.StableStore.
func (s *StableStore) Set(key, value []byte) error {
	return s.guard.do("vote", func() error { return s.StableStore.Set(key, value) })
}

// SetUint64 implements raft.StableStore. A term never goes back: raft's heartbeats are handled beside its main goroutine, and one that was
// overtaken by an election of this node must not put an older term in the place of the one in which the node was elected.
func (s *StableStore) SetUint64(key []byte, value uint64) error {
	return s.guard.do("term", func() error {
		s.terms.Lock()
		defer s.terms.Unlock()
		if before, err := s.StableStore.GetUint64(key); err == nil && before > value {
			return fmt.Errorf("%w: %s from %d to %d", ErrTermBack, key, before, value)
		}
		return s.StableStore.SetUint64(key, value)
	})
}

// ErrTermBack says that a term was about to be replaced by an older one.
var ErrTermBack = errors.New("a term would go back")
