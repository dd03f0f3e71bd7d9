package role

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// † A write that a busy leader will not take is refused through the log: another node holds a copy, and would execute it when
// it leads next. A GET changes nothing, so it may be refused at once.
func TestOverloadIsRefusedThroughTheLog(t *testing.T) {
	f, s := newNode(t, func(c *Config) { c.OverloadAge = time.Nanosecond })
	serve(f)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject || len(s.proposed[0].Rejected) != 1 {
		t.Fatalf("%+v", s.proposed)
	}
	if r := f.last(); r.State() != pending.StateShedding {
		t.Error("answered before the refusal is in the log")
	}
	arrive(f, get, strings.Repeat("b", 16), "__srcId", "d")
	if r := f.last(); len(s.proposed) != 1 || r.State() != pending.StateDelivering {
		t.Error("a GET is refused through the log")
	}
}

// † The log cannot refuse a write without an identity. After any other refusal, another node might still receive the write and execute it, and so might
// the only node. So a busy leader does not answer such a write.
func TestOverloadWithoutIdentityIsUnanswered(t *testing.T) {
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("alone %v", alone), func(t *testing.T) {
			f, s := newNode(t, func(c *Config) { c.OverloadAge = time.Nanosecond })
			s.alone = alone
			serve(f)
			arrive(f, del, "short", "__srcId", "c")
			if len(s.proposed) != 0 {
				t.Errorf("alone %v: %+v is proposed", alone, s.proposed)
			}
			if f.held() != 0 || f.Busy() != 0 {
				t.Errorf("alone %v: %d held, %d busy", alone, f.held(), f.Busy())
			}
		})
	}
}

// The store proposes a refusal in place of a write that waited in it for too long. The write may have taken effect before, and the dedup table may have
// forgotten that. So the leader answers only if the table still has an outcome with a reply.
func TestRefusalOfTheStoreIsNoAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		result   fsm.Result
		answered bool
	}{
		"refused":                             {fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}, false},
		"refused before":                      {fsm.Result{Code: fsm.CodeError, Error: fsm.ErrorOverloaded, Repeat: true}, true},
		"refused before, and nobody was told": {fsm.Result{Code: fsm.CodeNoReply, Repeat: true}, false},
		"dropped":                             {fsm.Result{Code: fsm.CodeNoReply}, false},
		"known":                               {fsm.Result{Code: fsm.CodeDeleted, Repeat: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			serve(f)
			arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
			refusal := s.proposed[0].Refusal(true)
			f.Applied(&fsm.EntryOutcome{Index: 5, Commands: []fsm.Command{refusal}, Results: []fsm.Result{test.result}}, s.tags)
			if answered := f.held() == 1; answered != test.answered || (f.Busy() == 1) != answered || f.writes("c") != 0 {
				t.Errorf("answered %v, %d busy, %d writing", answered, f.Busy(), f.writes("c"))
			}
		})
	}
}
