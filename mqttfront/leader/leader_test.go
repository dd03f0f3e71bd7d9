package leader

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/outbox"
	"holdfast/mqttfront/wire"
	"holdfast/resp"
)

// A request is acknowledged when the broker has its reply. A node that does not lead takes none.
func TestRequestIsAcknowledgedWithItsReply(t *testing.T) {
	f, s := newNode(t)
	if acknowledged := arrive(f, del, "0123456789abcdef"); *acknowledged || len(s.proposed) != 0 {
		t.Error("a node that does not lead took a request")
	}
	o := serve(f)
	write, read := arrive(f, del, "0123456789abcdef"), arrive(f, get, "short", "__srcId", "another")
	if len(s.proposed) != 1 || len(s.reads) != 1 {
		t.Fatalf("%d proposed, %d read", len(s.proposed), len(s.reads))
	}
	f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
	f.ReadDone(s.reads[0], fsm.Result{Code: fsm.CodeNull})
	if *write || *read {
		t.Error("acknowledged before the reply was published")
	}
	if o.deliver(); !*write || !*read || f.Busy() != 0 {
		t.Errorf("acknowledged: %v, %v; %d busy", *write, *read, f.Busy())
	}
}

// † What has no reply when a leadership ends is not acknowledged, whatever its state: the broker
// gives it to the next leader.
func TestEndOfALeadershipAcknowledgesNothing(t *testing.T) {
	for name, end := range map[string]func(*node, *fakeStore){
		"in the hands of the store": func(f *node, s *fakeStore) {
			f.end()
			f.Failed(s.tags[0], false)
		},
		"given back before the end": func(f *node, s *fakeStore) {
			f.Failed(s.tags[0], false)
			f.end()
		},
		"on its way out": func(f *node, s *fakeStore) {
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
			f.end()
		},
		"applied after the end": func(f *node, s *fakeStore) {
			f.end()
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
		},
		"published after the end": func(f *node, s *fakeStore) {
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
			f.end()
			f.leader.sender.(*fakeOutbox).deliver()
		},
		"applied in the next leadership": func(f *node, s *fakeStore) {
			f.end()
			serve(f)
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
			f.Failed(s.tags[0], true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			serve(f)
			acknowledged := arrive(f, del, "0123456789abcdef")
			end(f, s)
			if *acknowledged || f.Busy() != 0 || s.published != 0 {
				t.Errorf("acknowledged: %v, %d busy, watermark %d", *acknowledged, f.Busy(),
					s.published)
			}
		})
	}
}

// † A request that the store gives back while the leadership goes on comes again: PUBACKs go in
// order, so nothing behind it would be acknowledged. One that cannot be encoded would come again
// for ever: it ends.
func TestRequestThatIsGivenBackComesAgain(t *testing.T) {
	for name, test := range map[string]struct {
		give                func(*node, *fakeStore)
		again, acknowledged bool
	}{
		"not done": {func(f *node, s *fakeStore) { f.Failed(s.tags[0], false) }, true, false},
		"invalid":  {func(f *node, s *fakeStore) { f.Failed(s.tags[0], true) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			serve(f)
			acknowledged := arrive(f, del, "0123456789abcdef", "__srcId", "c")
			test.give(f, s)
			if (f.reconnects == 1) != test.again || *acknowledged != test.acknowledged ||
				f.Busy() != 0 || f.writes("c") != 0 {
				t.Errorf("%d reconnects, acknowledged %v, %d busy", f.reconnects, *acknowledged,
					f.Busy())
			}
		})
	}
	t.Run("not taken up", func(t *testing.T) {
		f, s := newNode(t)
		serve(f)
		s.refuses = true
		for _, payload := range []string{del, get} {
			if acknowledged := arrive(f, payload, "0123456789abcdef"); *acknowledged ||
				f.Busy() != 0 {
				t.Errorf("acknowledged %v, %d busy", *acknowledged, f.Busy())
			}
		}
		if f.reconnects != 2 {
			t.Errorf("%d reconnects", f.reconnects)
		}
	})
}

// † Nodes compute the same request identity for a message even if their settings for the client's
// identity differ, as while a change is rolled out. Otherwise the message would be executed twice.
// Nor does it depend on where the client id comes from.
func TestIdentityOfARequestDependsOnItsBytes(t *testing.T) {
	one, s := newNode(t)
	other, t2 := newNodeOf(t, broker.NoDriver{},
		wire.Identity{ClientIDProperty: "client-id", UsernameProperty: "user"})
	for _, f := range []*node{one, other} {
		serve(f)
		arrive(f, del, strings.Repeat("a", 16), "__srcId", "c", "client-id", "app-0", "user", "u")
	}
	arrive(one, del, strings.Repeat("a", 16)) // on clients/c/r
	arrive(one, del, strings.Repeat("a", 16), "__srcId", "another")
	if s.proposed[0].ID != t2.proposed[0].ID || s.proposed[0].ID != s.proposed[1].ID {
		t.Error("the same request has two identities")
	}
	if s.proposed[0].ID == s.proposed[2].ID {
		t.Error("a request of another client has the same identity")
	}
}

// A request waits for room until another one ends. It is left at the broker if the leadership or
// the context ends first.
func TestRequestWaitsForRoom(t *testing.T) {
	for name, test := range map[string]struct {
		ends  func(f *node, s *fakeStore, cancel func())
		taken bool
	}{
		"another one ends": {func(f *node, s *fakeStore, _ func()) {
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
			f.leader.sender.(*fakeOutbox).deliver()
		}, true},
		"the leadership ends": {func(f *node, _ *fakeStore, _ func()) { f.end() }, false},
		"the context ends":    {func(_ *node, _ *fakeStore, cancel func()) { cancel() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newNode(t, func(c *Config) { c.Executing = 1 })
				serve(f)
				arrive(f, del, strings.Repeat("a", 16))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				acknowledged := false
				go f.receiver.decodeAndAdmit(ctx, message(del, strings.Repeat("b", 16), nil), now(),
					func() { acknowledged = true })
				synctest.Wait()
				if !f.Blocked() || len(s.proposed) != 1 {
					t.Fatalf("blocked %v, %d proposed", f.Blocked(), len(s.proposed))
				}
				test.ends(f, s, cancel)
				synctest.Wait()
				if f.Blocked() || (len(s.proposed) == 2) != test.taken || acknowledged {
					t.Errorf("blocked %v, %d proposed, acknowledged %v", f.Blocked(),
						len(s.proposed), acknowledged)
				}
			})
		})
	}
}

// A GET follows the writes of its client: through the log while they are under way, else by read
// index.
func TestReadsFollowWrites(t *testing.T) {
	f, s := newNode(t)
	serve(f)
	arrive(f, del, "0123456789abcdef")
	arrive(f, get, "0123456789abcdeg")
	if len(s.proposed) != 2 || s.proposed[1].Kind != fsm.KindGet || len(s.reads) != 0 {
		t.Fatalf("%d proposed, %d read", len(s.proposed), len(s.reads))
	}
	arrive(f, get, "0123456789abcdeh", "__srcId", "another")
	if len(s.reads) != 1 {
		t.Error("another client's GET waits for writes that are not its own")
	}
}

// A SCAN follows the writes of its client, too. It is never in the log: a no-op goes there behind
// the writes, and the SCAN is read when that is applied.
func TestScansFollowWrites(t *testing.T) {
	const scan = "*2\r\n$4\r\nSCAN\r\n$1\r\n*\r\n"
	f, s := newNode(t)
	o := serve(f)
	arrive(f, del, "0123456789abcdef")
	arrive(f, scan, "0123456789abcdeg")
	if len(s.proposed) != 2 || len(s.reads) != 0 {
		t.Fatalf("%d proposed, %d read", len(s.proposed), len(s.reads))
	}
	if noOp := s.proposed[1]; noOp.Kind != fsm.KindGet || !noOp.ID.IsZero() {
		t.Fatalf("behind the write is %+v", noOp)
	}
	arrive(f, scan, "0123456789abcdeh", "__srcId", "another")
	if len(s.reads) != 1 {
		t.Error("another client's SCAN waits for writes that are not its own")
	}
	f.Applied(s.outcome(11, fsm.CodeError), s.tags[1:])
	if len(s.reads) != 2 || s.reads[1] != s.tags[1] {
		t.Fatalf("%d read after the no-op", len(s.reads))
	}
	if len(o.outputs) != 0 {
		t.Fatal("the result of the no-op is the reply")
	}
	f.ReadDone(s.reads[1], fsm.Result{Code: fsm.CodeKeys, Page: &fsm.KeyPage{Keys: []string{"k"}}})
	if len(o.outputs) != 1 || string(
		o.outputs[0].Encode(time.Now()).Payload) != "*1\r\n*1\r\n$1\r\nk\r\n" {
		t.Fatalf("%d replies", len(o.outputs))
	}
	o.deliver()
	if f.Busy() != 2 || f.writes("c") != 1 {
		t.Errorf("%d requests, %d writes are left", f.Busy(), f.writes("c"))
	}
}

func array(arguments ...string) string { return string(resp.AppendArray(nil, arguments...)) }

// A value that exceeds a limit does not go into the log. The request keeps the value, because
// another leader may know other limits. The command bounds its reply to what the broker accepts.
func TestTransactionIsBoundedBeforeTheLog(t *testing.T) {
	f, s := newNode(t)
	settings := fsm.DefaultSettings()
	settings.Limits.ValueBytes = 10
	o := serve(f)
	o.maxPacket = 1000
	f.Applied(&fsm.EntryOutcome{
		Index:    2,
		Commands: []fsm.Command{{Kind: fsm.KindConfigure, Settings: &settings}},
		Results:  make([]fsm.Result, 1),
	}, nil)
	arrive(f, array("TXN", array("SET", "a", "short"), array("SET", "b", "much too long"),
		array("GET", "c")), "0123456789abcdef")
	if len(s.proposed) != 1 {
		t.Fatalf("%d commands are proposed", len(s.proposed))
	}
	got, request := s.proposed[0], s.tags[0].(*Request)
	if string(got.Operations[0].Value) != "short" || !got.Operations[1].Oversize ||
		got.Operations[1].Value != nil || got.Operations[2].Oversize {
		t.Errorf("%+v is proposed", got.Operations)
	}
	if kept := request.Command.Operations[1]; string(kept.Value) != "much too long" ||
		kept.Oversize {
		t.Errorf("the request has %+v", kept)
	}
	if want := 1000 - int64(len(request.ResponseTopic)+16+replyFields); got.MaxReply != want {
		t.Errorf("the reply may have %d bytes, want %d", got.MaxReply, want)
	}
	f.Applied(&fsm.EntryOutcome{Index: 3, Commands: s.proposed, Results: []fsm.Result{{
		Code: fsm.CodeReplies, Replies: []fsm.Result{
			{Code: fsm.CodeOK},
			{Code: fsm.CodeDeleted},
			{Code: fsm.CodeValue, Value: "v"},
			{Code: fsm.CodeNull},
			{Code: fsm.CodeMissing},
		},
	}}}, s.tags)
	if len(o.outputs) != 1 || string(
		o.outputs[0].Encode(time.Now()).Payload) != "*5\r\n+OK\r\n:1\r\n$1\r\nv\r\n$-1\r\n:0\r\n" {
		t.Errorf("%d replies", len(o.outputs))
	}
}

// replyFields is not smaller than the longest packet of a reply without its payload, its topic and
// the Correlation Data.
func TestReplyFieldsCoverTheFieldsOfAReply(t *testing.T) {
	m := fsm.New()
	entry := func(number uint64, command fsm.Command) *fsm.EntryOutcome {
		outcome, err := m.Apply(number+1, 1,
			fsm.AppendEntry(nil, &fsm.Entry{
				Term: min(number, 1), Number: number, Wall: 1 << 62,
				Commands: []fsm.Command{command},
			}))
		if err != nil {
			t.Fatal(err)
		}
		return outcome
	}
	entry(0, fsm.Command{Kind: fsm.KindLeaderStart})
	outcome := entry(1, fsm.Command{
		Kind:       fsm.KindTxn,
		Operations: []fsm.Command{{Kind: fsm.KindSet, Key: []byte("k")}},
	})
	r := wire.Request{
		ResponseTopic: "t", Correlation: []byte("c"),
		Deadline: time.Now().Add(time.Hour),
	}
	encoded := mqttconn.AppendPublish(nil, wire.EncodeReply(&r, &outcome.Results[0], time.Now()))
	if fields := len(encoded) - len("*1\r\n+OK\r\n") - 2; fields > replyFields-10 {
		t.Errorf("%d bytes of a reply are neither payload, topic nor Correlation Data", fields)
	}
}

// The delivery watermark passes an entry when the broker has the notifications of that entry and of
// all entries before it, and not earlier. Replies do not count: an unacknowledged request comes
// again.
func TestWatermarkCoversWhatTheBrokerHas(t *testing.T) {
	f, s := newNode(t)
	o := serve(f)
	arrive(f, del, "0123456789abcdef", "__srcId", "c")
	f.Applied(s.outcome(9, fsm.CodeDeleted), s.tags)
	for index := uint64(10); index <= 12; index++ {
		f.Applied(&fsm.EntryOutcome{
			Index: index, Commands: []fsm.Command{{Kind: fsm.KindDel}},
			Results: make([]fsm.Result, 1), Events: []fsm.Event{
				{Index: index, Key: "k", Receivers: []fsm.Receiver{{ClientID: "c"}}},
			},
		}, []any{nil})
	}
	outputs := map[uint64]*outbox.Output{}
	for _, output := range o.outputs {
		outputs[output.Index] = output
	}
	if o.leader.Published(outputs[0]); s.published != 0 || outputs[0].Request == nil {
		t.Errorf("after a reply the mark is %d", s.published)
	}
	for _, step := range []struct{ index, mark uint64 }{{11, 0}, {10, 11}, {12, 12}} {
		if o.leader.Published(outputs[step.index]); s.published != step.mark {
			t.Errorf("after %d the mark is %d, want %d", step.index, s.published, step.mark)
		}
	}
}

// A request keeps the whole message in memory, so the size of the whole message counts.
func TestBytesUnderWayAreThoseThatAreKept(t *testing.T) {
	f, s := newNode(t, func(c *Config) { c.RequestBytes = 1 << 20 })
	serve(f)
	ended, cancel := context.WithCancel(t.Context())
	cancel() // a request for which there is no room is left at once
	for i := range 20 {
		ctx := t.Context()
		if i >= 10 {
			ctx = ended
		}
		f.receiver.decodeAndAdmit(ctx,
			mqttconn.Message{
				Size: 100_000,
				Publish: &mqttconn.Publish{
					QoS: 1, Topic: topics.Invoke, Payload: []byte(get),
					Properties: &mqttconn.Properties{
						ResponseTopic:   fmt.Sprintf("clients/c%d/r", i),
						CorrelationData: fmt.Appendf(nil, "%016d", i),
					},
				},
			}, now(), func() {})
	}
	if len(s.reads) != 10 || f.leader.load.bytes < 1_000_000 {
		t.Errorf("%d read, of %d bytes", len(s.reads), f.leader.load.bytes)
	}
}
