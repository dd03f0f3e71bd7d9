package mqttfront

import (
	"testing"
	"time"

	"holdfast/fsm"
)

// A reply that is given up, as while its client has a penalty, does not hold the delivery watermark up.
func TestReplyThatIsGivenUpCountsAsDelivered(t *testing.T) {
	f, s := newTestFront(t)
	serve(f).full = true
	arrive(f, del, "0123456789abcdef", "__srcId", "c")
	f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
	if f.busy != 0 || f.pending.len() != 0 || s.published != 5 {
		t.Errorf("%d busy, %d held, watermark %d", f.busy, f.pending.len(), s.published)
	}
}

// The node's own session tells whether the broker is there, and since when.
func TestSessionUpSince(t *testing.T) {
	f, _ := newTestFront(t)
	f.setSession(true, "connected")
	if !f.sessionUpSince(time.Now()) || f.sessionUpSince(time.Now().Add(-time.Hour)) {
		t.Error("wrong since when the session is up")
	}
	if f.setSession(false, "lost"); f.sessionUpSince(time.Now()) {
		t.Error("up although it was lost")
	}
}
