package leader

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
	"holdfast/internal/policy"
)

// A request ends when its reply is given up: a client whose reply made the broker end a connection
// gets no replies for a while.
func TestReplyThatIsGivenUpCountsAsDelivered(t *testing.T) {
	f, s := newNode(t)
	serve(f).givesUp = func(string) bool { return true }
	acknowledged := arrive(f, del, "0123456789abcdef", "__srcId", "c")
	f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
	if f.Busy() != 0 || !*acknowledged {
		t.Errorf("%d busy, acknowledged: %v", f.Busy(), *acknowledged)
	}
}

// † A notification that is given up at once does not move the delivery watermark past the others of
// its entry: they are not published yet, and the next leader would not publish them.
func TestGivenUpNotificationLeavesTheRestOfItsEntry(t *testing.T) {
	for name, test := range map[string]func(*node, *fakeStore) *fakeOutbox{
		"new": func(f *node, _ *fakeStore) *fakeOutbox {
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
		"published again": func(f *node, s *fakeStore) *fakeOutbox {
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

// † A new leader moves the delivery watermark past notifications that have expired. Otherwise the
// state would keep them until another one is published.
func TestExpiredNotificationsAreReleased(t *testing.T) {
	f, s := newNode(t)
	commit(t, s, fsm.Entry{Commands: []fsm.Command{
		{Kind: fsm.KindKeyNotify, Principal: policy.Principal{ClientID: "c"}, Key: []byte("k")},
		{Kind: fsm.KindSet, Key: []byte("k")},
	}})
	expired := s.machine.Status().Index
	commit(t, s, fsm.Entry{Elapsed: 60_000})
	if o := serve(f); len(o.outputs) != 0 || s.published != expired {
		t.Fatalf("%d outputs, and the watermark is %d, want %d", len(o.outputs), s.published,
			expired)
	}
}

// † A reply that the broker does not acknowledge for a minute is given up: PUBACKs go in order, and
// the window would close for everybody. A PUBACK that comes later changes nothing.
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
		if !*stuck || *young || f.Busy() != 1 {
			t.Fatalf("acknowledged: %v, %v; %d busy", *stuck, *young, f.Busy())
		}
		if o.deliver(); !*young || f.Busy() != 0 || f.leader.delivering.first != nil {
			t.Errorf("acknowledged: %v; %d busy", *young, f.Busy())
		}
	})
}
