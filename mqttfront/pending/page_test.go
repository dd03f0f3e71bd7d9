package pending

import (
	"testing"
	"time"

	"holdfast/fsm"
)

// ReadPage leaves out a request whose encoding is truncated, and returns an error. Two lengths are valid: earlier versions did not send the last field, or
// the last two.
func TestCutRequestIsLeftOut(t *testing.T) {
	now := time.Now()
	r := &Request{Done: func() {}, Arrived: now, EstimatedSendTime: now.Add(-time.Hour), BrokerReceivedAfter: now.Add(-time.Hour), HoldUntil: now.Add(time.Hour)}
	r.Command = fsm.Command{Kind: fsm.KindDel, ID: fsm.RequestID{1}, Key: []byte("k"), Lifetime: 1000}
	whole := fields{rest: appendRequest(nil, r, now)}
	body := whole.bytes()
	var readable []int
	for length := range len(body) {
		if requests, err := ReadPage(appendField(nil, body[:length]), now, now); err == nil || len(requests) != 0 {
			readable = append(readable, len(body)-length)
		}
	}
	if want := 2; len(readable) != want { // without BrokerReceivedAfter, and also without EstimatedSendTime
		t.Errorf("readable without the last %d bytes, want %d such lengths", readable, want)
	}
}
