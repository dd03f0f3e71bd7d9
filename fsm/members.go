package fsm

import (
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Versions that a cluster must have in force before a kind or a setting is proposed, or a rule holds.
const (
	VersionPinNonVoter  = 2 // KindPinNonVoter, KindAllowPromotion
	VersionRestore      = 2 // KindStage, KindRestore
	VersionClientShares = 3 // Limits.WatchesPerClient, Limits.DedupPerClient
	VersionProlong      = 4 // a copy of a request prolongs its outcome; Rejection.Silent
)

// maxKept bounds the members that stay non-voters: more are no cluster any more.
const maxKept = 64

// KeptNonVoter reports whether the member with this raft id stays a non-voter by an operator's word.
func (m *Machine) KeptNonVoter(id string) bool {
	_, kept := slices.BinarySearch(m.keptNonVoters, id)
	return kept
}

func (m *Machine) keepNonVoter(id string, keep bool) Result {
	at, kept := slices.BinarySearch(m.keptNonVoters, id)
	switch {
	case keep && !kept && len(m.keptNonVoters) >= maxKept:
		return Result{Code: CodeError, Error: ErrorQuota}
	case keep && !kept:
		m.mixIntoStateHash('M', xxhash.Sum64String(id))
		m.keptNonVoters = slices.Insert(slices.Clone(m.keptNonVoters), at, id) // a snapshot may hold the old one
	case !keep && kept:
		m.mixIntoStateHash('m', xxhash.Sum64String(id))
		m.keptNonVoters = slices.Delete(slices.Clone(m.keptNonVoters), at, at+1)
	}
	return Result{}
}
