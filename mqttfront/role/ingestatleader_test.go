package role

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
)

func atLeader(c *Config) { c.IngestAtLeader = true }

// With ingest at the leader the broker keeps a request until the leader acknowledges it, together with the reply. No other node acknowledges it.
func TestIngestAtLeaderAcknowledgesWithTheReply(t *testing.T) {
	f, s := newNode(t, atLeader)
	if acknowledged := arrive(f, del, "0123456789abcdef"); *acknowledged || f.held() != 0 {
		t.Error("a node that does not lead took a request")
	}
	o := serve(f)
	acknowledged := arrive(f, del, "0123456789abcdef")
	if *acknowledged || len(s.proposed) != 1 {
		t.Fatal("acknowledged before the reply")
	}
	f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
	if *acknowledged {
		t.Error("acknowledged before the reply was published")
	}
	o.deliver()
	if !*acknowledged || f.held() != 0 || f.Busy() != 0 {
		t.Errorf("acknowledged: %v, %d held, %d busy", *acknowledged, f.held(), f.Busy())
	}
}

// A node that has stopped leading drops all requests, whatever their state, and acknowledges none, so that the broker gives them to the next leader.
func TestIngestAtLeaderReleasesAllWhenTheLeadershipEnds(t *testing.T) {
	for name, end := range map[string]func(*node, *fakeStore){
		"in the hands of the store": func(f *node, s *fakeStore) {
			f.endLeadership(leading(f))
			f.Failed(s.tags[0], true)
		},
		"given back before the end": func(f *node, s *fakeStore) {
			f.Failed(s.tags[0], false)
			f.endLeadership(leading(f))
		},
		"on its way out": func(f *node, s *fakeStore) {
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
			f.endLeadership(leading(f))
		},
		"applied after the end": func(f *node, s *fakeStore) {
			f.endLeadership(leading(f))
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t, atLeader)
			serve(f)
			acknowledged := arrive(f, del, "0123456789abcdef")
			end(f, s)
			if *acknowledged || f.held() != 0 || f.Busy() != 0 {
				t.Errorf("acknowledged: %v, %d held, %d busy", *acknowledged, f.held(), f.Busy())
			}
		})
	}
}

// A redelivered write without an identity cannot be recognised, so it is not executed: an earlier leader may have executed it. Nor is one that the log
// refused without a reply.
func TestRedeliveredWithoutIdentityOrReplyIsNotExecuted(t *testing.T) {
	f, s := newNode(t, atLeader)
	serve(f)
	lasts := uint32(30)
	delivered := func(correlation string, again bool) mqttconn.Message {
		m := message(del, correlation, &lasts)
		m.Redelivered = again
		return m
	}
	acknowledged := 0
	for _, m := range []mqttconn.Message{delivered("short", false), delivered("short", true), delivered("0123456789abcdef", true)} {
		f.receiver.decodeAndAdmit(t.Context(), m, ingest.Arrival{At: time.Now()}, func() { acknowledged++ })
	}
	if acknowledged != 1 || len(s.proposed) != 2 {
		t.Errorf("%d acknowledged, %d proposed", acknowledged, len(s.proposed))
	}
	f.pending.Hints().RecordEnd(s.proposed[1].ID, pending.EndNoReply, 1, false, time.Now())
	if f.receiver.decodeAndAdmit(t.Context(), delivered("0123456789abcdef", true), ingest.Arrival{At: time.Now()}, func() { acknowledged++ }); acknowledged != 2 || len(s.proposed) != 2 {
		t.Errorf("what was dropped: %d acknowledged, %d proposed", acknowledged, len(s.proposed))
	}
}

// † A redelivery may be of any age, so that deduplication may have forgotten its outcome, unless its message expiry shows that it is young. One second left
// shows nothing: EMQX delivers an expired message again with one second left.
func TestRedeliveryOfUnknownAgeIsNotExecuted(t *testing.T) {
	for name, test := range map[string]struct {
		left     uint32 // seconds; 0 is no message expiry
		again    bool   // the broker delivers it again
		pending  bool   // this node has it already
		executed bool
	}{
		"one second left":            {left: 1, again: true},
		"no message expiry":          {again: true},
		"two seconds left":           {left: 2, again: true, executed: true},
		"one second left, the first": {left: 1, executed: true},
		"this node knows its age":    {left: 1, again: true, pending: true, executed: true},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t, atLeader)
			f.known.version = fsm.VersionProlong // from this version on the log has silent refusals
			serve(f)
			m := message(del, "0123456789abcdef", nil)
			if test.left != 0 {
				m.Properties.MessageExpiry = &test.left
			}
			if test.pending {
				f.receiver.decodeAndAdmit(t.Context(), m, ingest.Arrival{At: time.Now()}, func() {})
			}
			m.Redelivered = test.again
			f.receiver.decodeAndAdmit(t.Context(), m, ingest.Arrival{At: time.Now()}, func() {})
			want, copies := fsm.KindReject, 1
			if test.executed {
				want = fsm.KindDel
			}
			if test.pending {
				copies = 2 // each copy is proposed: the state machine deduplicates
			}
			if len(s.proposed) != copies || s.proposed[copies-1].Kind != want {
				t.Fatalf("%+v is proposed, want %d commands, the last of kind %d", s.proposed, copies, want)
			}
			if test.executed {
				return
			}
			if rejected := s.proposed[0].Rejected; len(rejected) != 1 || rejected[0].ID != f.last().Command.ID || !rejected[0].Silent { // an earlier leader may have executed it
				t.Errorf("%+v is rejected", rejected)
			}
		})
	}
}

// A write of unknown age is answered if its outcome is known.
func TestRedeliveryOfUnknownAgeGetsItsOutcome(t *testing.T) {
	f, s := newNode(t, atLeader)
	serve(f)
	m := message(del, "0123456789abcdef", nil)
	m.Redelivered = true
	for i, repeat := range []bool{false, true} {
		t.Run(fmt.Sprintf("repeat %v", repeat), func(t *testing.T) {
			f.receiver.decodeAndAdmit(t.Context(), m, ingest.Arrival{At: time.Now()}, func() {})
			last := len(s.proposed) - 1
			f.Applied(&fsm.EntryOutcome{Index: uint64(5 + i), Commands: s.proposed[last:], Results: []fsm.Result{{Code: fsm.CodeDeleted, Repeat: repeat}}}, s.tags[last:])
			if answered := f.sent() == 1; answered != repeat {
				t.Errorf("the log has an outcome from before: %v; answered: %v", repeat, answered)
			}
		})
	}
}

// † A write that expired while it waited for room is refused in the log, before its client's later requests. So no copy of it is executed behind them:
// neither a redelivery, nor another node's copy, whose deadline may be up to a second later.
func TestExpiredIsRefusedInTheLog(t *testing.T) {
	for name, configure := range map[string]func(*Config){"one session": atLeader, "a session each": func(*Config) {}} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t, configure)
			serve(f)
			lasts := uint32(5)
			f.receiver.decodeAndAdmit(t.Context(), message(del, "0123456789abcdef", &lasts), ingest.Arrival{At: time.Now().Add(-6 * time.Second)}, func() {})
			again := message(del, "0123456789abcdef", &lasts)
			again.Redelivered = true
			f.receiver.decodeAndAdmit(t.Context(), again, ingest.Arrival{At: time.Now()}, func() {})
			f.receiver.decodeAndAdmit(t.Context(), message(get, "0123456789abcdef", &lasts), ingest.Arrival{At: time.Now().Add(-6 * time.Second)}, func() {})
			if len(s.proposed) != 2 || s.proposed[0].Kind != fsm.KindReject || s.proposed[1].Kind != fsm.KindReject {
				t.Fatalf("%+v is proposed", s.proposed)
			}
			commit(t, s, fsm.Entry{Commands: s.proposed})
			if result, _, known := s.machine.Remembered(s.proposed[1].Rejected[0].ID); !known || result.Error != fsm.ErrorOverloaded {
				t.Errorf("outcome %+v", result)
			}
			first := s.tags[0].(*pending.Request)
			f.Applied(&fsm.EntryOutcome{Index: 3, Commands: s.proposed[:1], Results: []fsm.Result{{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}}}, s.tags[:1])
			if first.State() != pending.StateDone || f.Busy() != 1 {
				t.Errorf("state %d, %d busy", first.State(), f.Busy())
			}
		})
	}
}

// † Remaining expiry comes in whole seconds, so the deadlines of copies differ by up to a second from node to node. A write that this node gave up is not
// executed from another node's copy behind its client's later requests. Once this node has forgotten the write, its place is lost, and it is refused
// behind the later one.
func TestExpiredWriteIsRejectedDespitePeerCopy(t *testing.T) {
	for name, test := range map[string]struct {
		forgets bool
		want    string // refusals in upper case
	}{"held for its place": {false, "Ab"}, "forgotten": {true, "bA"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newNode(t)
				other, _ := newNode(t)
				began := time.Now()
				first, second := strings.Repeat("a", 16), strings.Repeat("b", 16)
				withExpiry(f, del, first, 2, "__srcId", "c")
				withExpiry(f, del, second, 4, "__srcId", "c")
				time.Sleep(900 * time.Millisecond)
				withExpiry(other, del, first, 2, "__srcId", "c")
				withExpiry(other, del, second, 4, "__srcId", "c")
				time.Sleep(1800 * time.Millisecond) // expired here, and not there
				f.removeExpired(time.Now())
				if test.forgets {
					f.removeExpired(began.Add(10 * time.Second))
				}
				serve(f)
				f.mergeAndExecute(s.machine, map[string][]*pending.Request{"other": heldBy(t, other)})
				if order := s.order(); order != test.want {
					t.Errorf("proposed in the order %q, want %q", order, test.want)
				}
			})
		})
	}
}
