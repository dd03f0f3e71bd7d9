package role

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
)

// † A node that was suspended becomes the leader while it still holds a request that its client no longer waits for. The leader refuses the request in the log,
// even if the message has no expiry.
func TestHeldBeyondItsTimeIsNotExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
		time.Sleep(time.Minute)
		serve(f)
		if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject {
			t.Errorf("%+v is proposed", s.proposed)
		}
	})
}
