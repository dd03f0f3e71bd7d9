package role

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
)

// † A node that was stopped for long comes to lead before it has given up what no client waits for any more: the outcome of that may be forgotten. It is
// refused in the log, also where the message has no expiry of its own.
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
