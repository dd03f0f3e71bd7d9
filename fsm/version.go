package fsm

import "fmt"

// Log versions. Each constant is the lowest version in force at which the log may have a command or a field, or at which a rule applies.
const (
	VersionPinNonVoter  = 2  // KindPinNonVoter, KindAllowPromotion
	VersionRestore      = 2  // KindStage, KindRestore
	VersionClientShares = 3  // Limits.WatchesPerClient, Limits.DedupPerClient
	VersionProlong      = 4  // a further copy of a request prolongs the lifetime of its outcome; Rejection.Silent
	VersionIfVersion    = 5  // IfVersion
	VersionScan         = 5  // the secret of continuation tokens; before, a SCAN is answered as an unknown command
	VersionPatternWatch = 6  // Command.Pattern
	VersionTxn          = 7  // KindTxn, Command.Operations, Command.MaxReply, CodeReplies
	VersionMirrors      = 8  // Settings.Mirrors
	VersionForeignTTL   = 9  // a restored snapshot of another store keeps what is left of its times to live
	VersionStoreID      = 10 // the id of the store, by which a restore knows another store's snapshot; before, the secret of continuation tokens
	VersionHorizon      = 11 // Entry.HorizonAge
)

// Version is the newest log version that this build can apply. It grows with every new kind of command or field of the log format. The members tell
// each other theirs, and a leader proposes nothing that the oldest of them does not know.
const Version = VersionHorizon

// version reads a log version that is in force, or comes into force. One above Version is ErrUnknown, because this build does not know its
// rules: after a downgrade the older build stops, as at an unknown kind.
func (r *reader) version() uint32 {
	version := r.uint()
	if version > Version {
		r.fail(fmt.Errorf("%w: version %d of the log is in force, and this build knows %d", ErrUnknown, version, Version))
	}
	return uint32(version)
}

// lastKind is the newest kind that this build knows.
const lastKind = KindTxn
