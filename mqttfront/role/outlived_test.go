package role

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
)

// † A node that was suspended becomes the leader while it still holds a request that its client no longer waits for. The leader refuses the request in the log,
// even if the message has no expiry. The refusal is silent when the dedup table may have forgotten an outcome of the request.
func TestHeldBeyondItsTimeIsNotExecuted(t *testing.T) {
	for name, test := range map[string]struct {
		after  time.Duration
		silent bool
	}{
		"within the dedup margin": {after: time.Minute},
		"after the dedup margin":  {after: 4 * time.Minute, silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newNode(t)
				f.known.version = fsm.Version
				arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
				time.Sleep(test.after)
				serve(f)
				if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject || s.proposed[0].Rejected[0].Silent != test.silent {
					t.Errorf("%+v is proposed", s.proposed)
				}
			})
		})
	}
}
