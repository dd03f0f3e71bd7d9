package leader

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
)

// † A write that a busy leader will not take is refused through the log: the client may send a copy
// that another leader would execute. A GET changes nothing, so it may be refused at once.
func TestOverloadIsRefusedThroughTheLog(t *testing.T) {
	f, s := newNode(t, func(c *Config) { c.OverloadAge = time.Nanosecond })
	serve(f)
	arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
	if len(s.proposed) != 1 || s.proposed[0].Kind != fsm.KindReject ||
		len(s.proposed[0].Rejected) != 1 {
		t.Fatalf("%+v", s.proposed)
	}
	if f.sent() != 0 {
		t.Error("answered before the refusal is in the log")
	}
	arrive(f, get, strings.Repeat("b", 16), "__srcId", "d")
	if len(s.proposed) != 1 || f.sent() != 1 {
		t.Error("a GET is refused through the log")
	}
}

// † The log cannot refuse a write without an identity. After any other refusal, the write might
// still come again and be executed. So a busy leader does not answer such a write.
func TestOverloadWithoutIdentityIsUnanswered(t *testing.T) {
	f, s := newNode(t, func(c *Config) { c.OverloadAge = time.Nanosecond })
	serve(f)
	if acknowledged := arrive(f, del, "short", "__srcId", "c"); len(s.proposed) != 0 ||
		!*acknowledged || f.Busy() != 0 || f.sent() != 0 {
		t.Errorf("%+v is proposed; acknowledged %v, %d busy, %d answered", s.proposed,
			*acknowledged, f.Busy(), f.sent())
	}
}

// When a refusal has waited in the store for long, the dedup table may have forgotten that the
// request took effect. Then the refusal is no answer.
func TestRefusalThatWaitedIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t, func(c *Config) { c.RequestsPerClient = 1 })
		serve(f)
		arrive(f, del, strings.Repeat("b", 16)) // fills the share
		arrive(f, del, strings.Repeat("a", 16))
		time.Sleep(f.config.ProposalAge + time.Second)
		f.Applied(&fsm.EntryOutcome{
			Index: 9, Commands: s.proposed[1:],
			Results: []fsm.Result{{Code: fsm.CodeError, Error: fsm.ErrorOverloaded}},
		}, s.tags[1:])
		if f.sent() != 0 || f.Busy() != 1 {
			t.Error("a definite refusal of what may have had its effect")
		}
	})
}

// The store proposes a refusal in place of a write that waited in it for too long. The write may
// have taken effect before, and the dedup table may have forgotten that. So the leader answers only
// if the table still has an outcome with a reply.
func TestRefusalOfTheStoreIsNoAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		result   fsm.Result
		answered bool
	}{
		"refused": {fsm.Result{
			Code:  fsm.CodeError,
			Error: fsm.ErrorOverloaded,
		}, false},
		"refused before": {fsm.Result{
			Code:  fsm.CodeError,
			Error: fsm.ErrorOverloaded, Repeat: true,
		}, true},
		"refused before, and nobody was told": {
			fsm.Result{Code: fsm.CodeNoReply, Repeat: true},
			false,
		},
		"dropped": {fsm.Result{Code: fsm.CodeNoReply}, false},
		"known": {
			fsm.Result{Code: fsm.CodeDeleted, Repeat: true},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			serve(f)
			arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
			refusal := s.proposed[0].Refusal(true)
			f.Applied(&fsm.EntryOutcome{
				Index: 5, Commands: []fsm.Command{refusal},
				Results: []fsm.Result{test.result},
			}, s.tags)
			if answered := f.sent() == 1; answered != test.answered ||
				(f.Busy() == 1) != answered || f.writes("c") != 0 {
				t.Errorf("answered %v, %d busy, %d writing", answered, f.Busy(), f.writes("c"))
			}
		})
	}
}
