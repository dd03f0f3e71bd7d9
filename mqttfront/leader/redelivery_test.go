package leader

import (
	"fmt"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
)

// A redelivered write without an identity cannot be recognised, so it is not executed: an earlier leader may have executed it.
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
	for _, m := range []mqttconn.Message{delivered("short", false), delivered("short", true), delivered("0123456789abcdef", true)} {
		f.receiver.decodeAndAdmit(t.Context(), m, time.Now(), func() { acknowledged++ })
	}
	if acknowledged != 1 || len(s.proposed) != 2 {
		t.Errorf("%d acknowledged, %d proposed", acknowledged, len(s.proposed))
	}
}

// † A redelivery may be of any age, so that deduplication may have forgotten its outcome, unless its message expiry shows that it is young. One second left
// shows nothing: EMQX delivers an expired message again with one second left.
func TestRedeliveryOfUnknownAgeIsNotExecuted(t *testing.T) {
	for name, test := range map[string]struct {
		left     uint32 // seconds; 0 is no message expiry
		again    bool   // the broker delivers it again
		executed bool
	}{
		"one second left":            {left: 1, again: true},
		"no message expiry":          {again: true},
		"two seconds left":           {left: 2, again: true, executed: true},
		"one second left, the first": {left: 1, executed: true},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			serve(f)
			f.leader.known.version = fsm.VersionProlong // from this version on the log has silent refusals
			m := message(del, "0123456789abcdef", nil)
			if test.left != 0 {
				m.Properties.MessageExpiry = &test.left
			}
			m.Redelivered = test.again
			f.receiver.decodeAndAdmit(t.Context(), m, time.Now(), func() {})
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
			if rejected := s.proposed[0].Rejected; len(rejected) != 1 || rejected[0].ID != s.tags[0].(*Request).Command.ID || !rejected[0].Silent { // an earlier leader may have executed it
				t.Errorf("%+v is rejected", rejected)
			}
		})
	}
}

// A write of unknown age is answered if its outcome is known.
func TestRedeliveryOfUnknownAgeGetsItsOutcome(t *testing.T) {
	f, s := newNode(t)
	serve(f)
	m := message(del, "0123456789abcdef", nil)
	m.Redelivered = true
	for i, repeat := range []bool{false, true} {
		t.Run(fmt.Sprintf("repeat %v", repeat), func(t *testing.T) {
			f.receiver.decodeAndAdmit(t.Context(), m, time.Now(), func() {})
			last := len(s.proposed) - 1
			f.Applied(&fsm.EntryOutcome{Index: uint64(5 + i), Commands: s.proposed[last:], Results: []fsm.Result{{Code: fsm.CodeDeleted, Repeat: repeat}}}, s.tags[last:])
			if answered := f.sent() == 1; answered != repeat {
				t.Errorf("the log has an outcome from before: %v; answered: %v", repeat, answered)
			}
		})
	}
}

// † A write that expired while it waited for room is refused in the log, before its client's later requests. So no
// redelivery of it is executed behind them.
func TestExpiredIsRefusedInTheLog(t *testing.T) {
	f, s := newNode(t)
	serve(f)
	lasts := uint32(5)
	f.receiver.decodeAndAdmit(t.Context(), message(del, "0123456789abcdef", &lasts), time.Now().Add(-6*time.Second), func() {})
	f.receiver.decodeAndAdmit(t.Context(), message(get, "0123456789abcdef", &lasts), time.Now().Add(-6*time.Second), func() {})
	if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject {
		t.Fatalf("%+v is proposed", s.proposed)
	}
	commit(t, s, fsm.Entry{Commands: s.proposed})
	if result, _, known := s.machine.Remembered(s.proposed[0].Rejected[0].ID); !known || result.Error != fsm.ErrorOverloaded {
		t.Errorf("outcome %+v", result)
	}
	f.Applied(&fsm.EntryOutcome{Index: 3, Commands: s.proposed, Results: []fsm.Result{{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}}}, s.tags)
	if f.sent() != 0 || f.Busy() != 0 {
		t.Errorf("%d answered, %d busy", f.sent(), f.Busy())
	}
}
