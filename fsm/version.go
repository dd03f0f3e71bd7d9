package fsm

import "fmt"

// Version is what this build can apply. It grows with every new kind of command or field of the log format. The members tell
// each other theirs, and a leader proposes nothing that the oldest of them does not know.
const Version = VersionMirrors

// version reads the version that is in force, or comes into force. A newer one than this build's has rules that this build does not know: an
// older binary that is put back stops, as at a kind that it does not know.
func (r *reader) version() uint32 {
	version := r.uint()
	if version > Version {
		r.fail(fmt.Errorf("%w: version %d of the log is in force, and this build knows %d", ErrUnknown, version, Version))
	}
	return uint32(version)
}

// lastKind is the newest kind that this build knows.
const lastKind = KindTxn
