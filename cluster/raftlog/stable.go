package raftlog

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// StableStore is a raft.StableStore that ends the process when Set or SetUint64 fails, hangs, or
// would lower a term. It does not give up a write that hangs: such a write could overwrite a newer
// vote later. Reads are not guarded.
type StableStore struct {
	raft.StableStore
	guard Guard
	terms sync.Mutex // held while SetUint64 compares and writes
}

// NewStableStore returns a stable store whose calls are guarded.
func NewStableStore(store raft.StableStore, guard Guard) *StableStore {
	return &StableStore{StableStore: store, guard: guard}
}

// Set implements raft.StableStore.
func (s *StableStore) Set(key, value []byte) error {
	return s.guard.do("vote", func() error { return s.StableStore.Set(key, value) })
}

// SetUint64 implements raft.StableStore. A term never goes back. Raft may handle a heartbeat
// outside of its main goroutine, while this node starts an election in a newer term. The
// heartbeat's older term must not replace that one.
func (s *StableStore) SetUint64(key []byte, value uint64) error {
	var lower error
	err := s.guard.do("term", func() error {
		s.terms.Lock()
		defer s.terms.Unlock()
		before, err := s.StableStore.GetUint64(key)
		if ignoreNotFound(err) != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		if before > value {
			lower = fmt.Errorf("%w: %s from %d to %d", ErrTermBack, key, before, value)
			return nil
		}
		return s.StableStore.SetUint64(key, value)
	})
	if lower != nil {
		s.guard.Exit(lower)
		return lower
	}
	return err
}

// keyCurrentTerm is the key of raft's current term.
const keyCurrentTerm = "CurrentTerm"

// ignoreNotFound returns nil for the error of a stable store that does not have the key. Like raft,
// it knows that error by its text.
func ignoreNotFound(err error) error {
	if err != nil && err.Error() == "not found" {
		return nil
	}
	return err
}

// ErrTermBack says that a term was about to be replaced by an older one.
var ErrTermBack = errors.New("refused to replace the term by an older one")
