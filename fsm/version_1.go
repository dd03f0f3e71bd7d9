//go:build holdfast_version1

package fsm

// Version is that of the build that knew no KindKeepNonVoter yet. It exists so that rolling upgrades are tested with a binary
// that really lacks something.
const Version = 1

const lastKind = KindAdvance
