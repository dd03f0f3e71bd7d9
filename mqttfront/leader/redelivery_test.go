package leader

import (
	"fmt"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
)

// A redelivered write without an identity cannot be recognised, so it is not executed: an earlier
// leader may have executed it.
func TestRedeliveredWithoutIdentityIsNotExecuted(t *testing.T) {
	f, s := newNode(t)
	serve(f)
	lasts := uint32(30)
	delivered := func(correlation string, again bool) mqttconn.Message {
		m := message(del, correlation, &lasts)
		m.Redelivered = again
		return m
	}
	acknowledged := 0
	for _, m := range []mqttconn.Message{
		delivered("short", false), delivered("short", true),
		delivered("0123456789abcdef", true),
	} {
		f.receiver.decodeAndAdmit(t.Context(), m, now(), func() { acknowledged++ })
	}
	if acknowledged != 1 || len(s.proposed) != 2 {
		t.Errorf("%d acknowledged, %d proposed", acknowledged, len(s.proposed))
	}
}

// † A write that the broker may have received long ago is not executed: the dedup table may have
// forgotten its outcome. Up to MaxUnexpiredAge a message expiry shows that it is younger. One
// second left shows nothing: EMQX delivers an expired message with one second left. Nor does what
// was left when the broker sent it, to a node that was stopped before it read. The DUP flag shows
// nothing either: a broker that was killed brings back what was acknowledged.
func TestWriteThatMayBeForgottenIsNotExecuted(t *testing.T) {
	for name, test := range map[string]struct {
		age      time.Duration
		left     uint32        // seconds, when the broker sent it; 0 is no message expiry
		waited   time.Duration // since the broker may have sent it
		executed bool
	}{
		"young":                  {age: 59 * time.Second, executed: true},
		"young, one second left": {age: 59 * time.Second, left: 1, executed: true},
		"old":                    {age: 61 * time.Second},
		"old, waited":            {age: 61 * time.Second, waited: time.Second},
		"old, one second left":   {age: 61 * time.Second, left: 1},
		"old, two seconds left":  {age: 61 * time.Second, left: 2, executed: true},
		"old, waited longer in the socket": {
			age: 61 * time.Second, left: 10,
			waited: 10 * time.Second,
		},
		"old, waited in the socket": {
			age: 61 * time.Second, left: 10,
			waited: 8 * time.Second, executed: true,
		},
		"within MaxUnexpiredAge, an hour left": {
			age: 719 * time.Second, left: 3600,
			executed: true,
		},
		"beyond MaxUnexpiredAge, an hour left": {age: 721 * time.Second, left: 3600},
	} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, DUP %v", name, again), func(t *testing.T) {
				f, s := newNode(t)
				serve(f)
				m := message(del, "0123456789abcdef", nil)
				m.Redelivered = again
				if test.left != 0 {
					m.Properties.MessageExpiry = &test.left
				}
				arrival := now()
				arrival.ReceivedAfter, arrival.SentAfter = arrival.At.Add(-test.age),
					arrival.At.Add(-test.waited)
				f.receiver.decodeAndAdmit(t.Context(), m, arrival, func() {})
				want := fsm.KindReject
				if test.executed {
					want = fsm.KindDel
				}
				if len(s.proposed) != 1 || s.proposed[0].Kind != want {
					t.Fatalf("%+v is proposed, want a command of kind %d", s.proposed, want)
				}
				if test.executed {
					return
				}
				if rejected := s.proposed[0].Rejected; len(rejected) != 1 ||
					rejected[0].ID != s.tags[0].(*Request).Command.ID || !rejected[0].Silent {
					// an earlier leader may have executed it
					t.Errorf("%+v is rejected", rejected)
				}
			})
		}
	}
}

// A write that is too old to be executed is answered if its outcome is known.
func TestOldWriteGetsItsOutcome(t *testing.T) {
	f, s := newNode(t)
	serve(f)
	m, arrival := message(del, "0123456789abcdef", nil), now()
	arrival.ReceivedAfter = arrival.At.Add(-time.Hour)
	for i, repeat := range []bool{false, true} {
		t.Run(fmt.Sprintf("repeat %v", repeat), func(t *testing.T) {
			f.receiver.decodeAndAdmit(t.Context(), m, arrival, func() {})
			last := len(s.proposed) - 1
			f.Applied(&fsm.EntryOutcome{
				Index: uint64(5 + i), Commands: s.proposed[last:],
				Results: []fsm.Result{{Code: fsm.CodeDeleted, Repeat: repeat}},
			}, s.tags[last:])
			if answered := f.sent() == 1; answered != repeat {
				t.Errorf("the log has an outcome from before: %v; answered: %v", repeat, answered)
			}
		})
	}
}

// † A write that expired while it waited for room is refused in the log, before its client's later
// requests. So no redelivery of it is executed behind them.
func TestExpiredIsRefusedInTheLog(t *testing.T) {
	f, s := newNode(t)
	serve(f)
	lasts := uint32(5)
	f.receiver.decodeAndAdmit(t.Context(), message(del, "0123456789abcdef", &lasts),
		read(6*time.Second), func() {})
	f.receiver.decodeAndAdmit(t.Context(), message(get, "0123456789abcdef", &lasts),
		read(6*time.Second), func() {})
	if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject {
		t.Fatalf("%+v is proposed", s.proposed)
	}
	commit(t, s, fsm.Entry{Commands: s.proposed})
	again := commit(t, s, fsm.Entry{Commands: s.proposed}).Results[0]
	if !again.Repeat || again.Error != fsm.ErrorOverloaded {
		t.Errorf("outcome %+v", again)
	}
	f.Applied(&fsm.EntryOutcome{
		Index: 3, Commands: s.proposed,
		Results: []fsm.Result{{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}},
	}, s.tags)
	if f.sent() != 0 || f.Busy() != 0 {
		t.Errorf("%d answered, %d busy", f.sent(), f.Busy())
	}
}
