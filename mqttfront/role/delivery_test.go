package role

import (
	"testing"

	"holdfast/fsm"
)

// A reply that is given up, as while its client has a penalty, does not hold the delivery watermark up.
func TestReplyThatIsGivenUpCountsAsDelivered(t *testing.T) {
	f, s := newNode(t)
	serve(f).full = true
	arrive(f, del, "0123456789abcdef", "__srcId", "c")
	f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
	if f.Busy() != 0 || f.held() != 0 || s.published != 5 {
		t.Errorf("%d busy, %d held, watermark %d", f.Busy(), f.held(), s.published)
	}
}
