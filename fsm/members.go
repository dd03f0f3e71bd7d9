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
	VersionIfVersion    = 5 // IfVersion
	VersionScan         = 5 // the secret of continuation tokens: without it a SCAN is unknown
	VersionPatternWatch = 6 // Command.Pattern
	VersionTxn          = 7 // KindTxn, Command.Operations, Command.MaxReply, CodeReplies
	VersionMirrors      = 8 // Settings.Mirrors
)

// maxPinned bounds the pinned non-voters. It is far above the size of any cluster.
const maxPinned = 64

// Pinned reports whether an operator has pinned the member with this raft id as a non-voter.
func (m *Machine) Pinned(id string) bool {
	_, pinned := slices.BinarySearch(m.pinned, id)
	return pinned
}

func (m *Machine) pin(id string, pin bool) Result {
	at, pinned := slices.BinarySearch(m.pinned, id)
	switch {
	case pin && !pinned && len(m.pinned) >= maxPinned:
		return Result{Code: CodeError, Error: ErrorQuota}
	case pin && !pinned:
		m.mixIntoStateHash('M', xxhash.Sum64String(id))
		m.pinned = slices.Insert(slices.Clone(m.pinned), at, id) // a snapshot may hold the old one
	case !pin && pinned:
		m.mixIntoStateHash('m', xxhash.Sum64String(id))
		m.pinned = slices.Delete(slices.Clone(m.pinned), at, at+1)
	}
	return Result{}
}
