package leader

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
	"holdfast/internal/policy"
)

// A reply that is given up does not hold back the delivery watermark (the log index up to which no
// output is outstanding). For instance, a client whose reply made the broker end a connection gets
// no replies for a while.
func TestReplyThatIsGivenUpCountsAsDelivered(t *testing.T) {
	f, s := newNode(t)
	serve(f).givesUp = func(string) bool { return true }
	arrive(f, del, "0123456789abcdef", "__srcId", "c")
	f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
	if f.Busy() != 0 || s.published != 5 {
		t.Errorf("%d busy, watermark %d", f.Busy(), s.published)
	}
}

// † An output that is given up at once does not move the delivery watermark past the other outputs
// of its entry: they are not published yet, and the next leader would not publish them.
func TestGivenUpOutputLeavesTheRestOfItsEntry(t *testing.T) {
	for name, test := range map[string]func(*node, *fakeStore) *fakeOutbox{
		"a reply": func(f *node, s *fakeStore) *fakeOutbox {
			o := serve(f)
			o.givesUp = func(client string) bool { return client == "c" }
			arrive(f, del, "0123456789abcdef", "__srcId", "c")
			arrive(f, del, "0123456789abcdef", "__srcId", "d")
			f.Applied(&fsm.EntryOutcome{
				Index: 5, Commands: s.proposed,
				Results: []fsm.Result{{Code: fsm.CodeDeleted}, {Code: fsm.CodeMissing}},
			}, s.tags)
			return o
		},
		"a notification": func(f *node, _ *fakeStore) *fakeOutbox {
			o := serve(f)
			o.givesUp = func(client string) bool { return client == "c" }
			f.Applied(&fsm.EntryOutcome{
				Index: 5, Commands: []fsm.Command{{Kind: fsm.KindDel}},
				Results: make([]fsm.Result, 1), Events: []fsm.Event{
					{
						Index: 5, Key: "k", Deleted: true,
						Receivers: []fsm.Receiver{{ClientID: "c"}, {ClientID: "d"}},
					},
				},
			}, []any{nil})
			return o
		},
		"a notification that is published again": func(f *node, s *fakeStore) *fakeOutbox {
			watch := func(client string) fsm.Command {
				return fsm.Command{
					Kind:      fsm.KindKeyNotify,
					Principal: policy.Principal{ClientID: client}, Key: []byte("k"),
				}
			}
			commit(t, s, fsm.Entry{Commands: []fsm.Command{
				watch("c"), watch("d"),
				{Kind: fsm.KindSet, Key: []byte("k")},
			}})
			return serveGivingUp(f, func(client string) bool { return client == "c" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			o := test(f, s)
			if len(o.outputs) != 1 || s.published != 0 {
				t.Fatalf("%d outputs wait, and the watermark is %d", len(o.outputs), s.published)
			}
			index := o.outputs[0].Index
			if o.deliver(); s.published != index {
				t.Errorf("the watermark is %d, want %d", s.published, index)
			}
		})
	}
}

// † A reply that the broker does not acknowledge for a minute is given up: PUBACKs go in order, and
// the window would close for everybody. A PUBACK that comes later changes nothing, and the delivery
// watermark does not pass the reply before it.
func TestStuckReplyIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newNode(t)
		o := serve(f)
		stuck := arrive(f, del, "0123456789abcdef")
		f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
		time.Sleep(30 * time.Second)
		young := arrive(f, del, "0123456789abcdeg")
		f.Applied(s.outcome(6, fsm.CodeDeleted), s.tags[1:])
		time.Sleep(31 * time.Second)
		f.leader.endStuck(time.Now())
		if !*stuck || *young || f.Busy() != 1 || s.published != 0 {
			t.Fatalf("acknowledged: %v, %v; %d busy, watermark %d", *stuck, *young, f.Busy(),
				s.published)
		}
		if o.deliver(); !*young || f.Busy() != 0 || s.published != 6 ||
			f.leader.delivering.first != nil {
			t.Errorf("acknowledged: %v; %d busy, watermark %d", *young, f.Busy(), s.published)
		}
	})
}
