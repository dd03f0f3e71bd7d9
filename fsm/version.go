package fsm

// Version is what this build can apply. It grows with every new kind of command or field of the log format. The members tell
// each other theirs, and a leader proposes nothing that the oldest of them does not know.
const Version = VersionProlong

// lastKind is the newest kind that this build knows.
const lastKind = KindRestore
