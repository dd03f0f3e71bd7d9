package fsm

import "fmt"

// Version is the newest version of the log that this build can apply. It grows with every new kind
// of command or field of the log format, and with every rule that changes an outcome. The members
// tell each other theirs, and a leader proposes nothing that the oldest of them does not know: the
// version in force is what every member can apply.
const Version = 1

// version reads a log version that is in force, or comes into force. One above Version is
// ErrUnknown, because this build does not know its rules: after a downgrade the older build stops,
// as at an unknown kind.
func (r *reader) version() uint32 {
	version := r.uint()
	if version > Version {
		r.fail(fmt.Errorf("%w: version %d of the log is in force, and this build knows %d",
			ErrUnknown, version, Version))
	}
	return uint32(version)
}

// lastKind is the newest kind that this build knows.
const lastKind = KindTxn
