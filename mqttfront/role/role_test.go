package role

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/publish"
	"holdfast/mqttfront/wire"
	"holdfast/resp"

	"github.com/eclipse/paho.golang/paho"
)

// † A write without an identity that has taken effect, or may have, is never proposed again.
func TestRequestWithoutIdentityIsNotRepeated(t *testing.T) {
	for name, end := range map[string]func(*node, *fakeStore){
		"its reply was on its way": func(f *node, s *fakeStore) {
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
			f.endLeadership(leading(f))
		},
		"it was applied when the leadership had ended": func(f *node, s *fakeStore) {
			f.endLeadership(leading(f))
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
		},
		"its outcome is unknown": func(f *node, s *fakeStore) {
			f.endLeadership(leading(f))
			f.Failed(s.tags[0], true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			serve(f)
			arrive(f, del, "short")
			end(f, s)
			serve(f)
			if len(s.proposed) != 1 || f.held() != 0 || f.Busy() != 0 {
				t.Errorf("proposed %d times, %d held, %d busy", len(s.proposed), f.held(), f.Busy())
			}
		})
	}
}

// The next leadership proposes again a request that definitely had no effect, and a request with an identity even if its outcome is unknown.
func TestRequestsGoToTheNextLeadership(t *testing.T) {
	for name, test := range map[string]struct {
		correlation string
		unknown     bool
	}{"not done": {"short", false}, "unknown, with an identity": {"0123456789abcdef", true}} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			serve(f)
			arrive(f, del, test.correlation)
			f.endLeadership(leading(f))
			f.Failed(s.tags[0], test.unknown)
			serve(f)
			if len(s.proposed) != 2 || s.proposed[1].Kind != fsm.KindDel || f.Busy() != 1 {
				t.Errorf("%+v is proposed, %d busy", s.proposed, f.Busy())
			}
		})
	}
}

// A node that does not lead holds one copy of each write with an identity. It releases the copy when the reply is known to be published.
func TestFollowerHoldsWritesUntilPublished(t *testing.T) {
	f, s := newNode(t)
	if !*arrive(f, del, "0123456789abcdef") {
		t.Error("with other nodes, PUBACK follows the copy into memory")
	}
	arrive(f, del, "0123456789abcdef") // redelivered
	arrive(f, del, "short")
	if f.held() != 1 {
		t.Fatalf("%d held", f.held())
	}
	command := f.first().Command
	f.Applied(&fsm.EntryOutcome{Index: 7, Commands: []fsm.Command{command}, Results: []fsm.Result{{Code: fsm.CodeDeleted}}, Published: 6}, nil)
	if f.held() != 1 {
		t.Error("released when applied, before it was published")
	}
	f.Applied(&fsm.EntryOutcome{Index: 8, Published: 7}, nil)
	if f.held() != 0 || f.heldBytes() != 0 || len(s.proposed) != 0 {
		t.Errorf("%d held, %d bytes", f.held(), f.heldBytes())
	}
}

// The only member of a cluster holds every request until the broker has the reply. Only then it acknowledges the request to the broker.
func TestAloneAcknowledgesWhatIsAnswered(t *testing.T) {
	f, s := newNode(t)
	s.alone = true
	acknowledged := arrive(f, get, "short")
	if *acknowledged || f.held() != 1 {
		t.Fatal("acknowledged before it was answered, or not kept")
	}
	o := serve(f)
	f.ReadDone(s.reads[0], 3, fsm.Result{Code: fsm.CodeNull})
	if *acknowledged {
		t.Fatal("acknowledged before the broker has the reply")
	}
	o.deliver()
	if !*acknowledged || f.held() != 0 || f.Busy() != 0 {
		t.Error("not let go")
	}
}

// † Nodes compute the same request identity for a message even if their settings for the client's identity differ, as while a change is rolled out.
// Otherwise the message would be executed twice.
func TestIdentityOfARequestDependsOnItsBytes(t *testing.T) {
	leader, s := newNode(t)
	other, _ := newNodeOf(t, broker.NoDriver{}, wire.Identity{ClientIDProperty: "client-id", UsernameProperty: "user"})
	serve(leader)
	properties := []string{"__srcId", "app", "client-id", "app-0", "user", "u"}
	for _, f := range []*node{leader, other} {
		arrive(f, del, strings.Repeat("a", 16), properties...)
	}
	added := takeUpFrom(t, leader, s, other)
	if len(added) != 0 || len(s.proposed) != 1 {
		t.Errorf("%d taken up, %d proposed", len(added), len(s.proposed))
	}
	arrive(leader, del, strings.Repeat("a", 16), "__srcId", "another")
	if len(s.proposed) != 2 || s.proposed[0].ID == s.proposed[1].ID {
		t.Error("a request of another client has the same identity")
	}
}

// When an entry fails, its commands are requeued, and the leadership lasts for a moment longer. A GET that a client sends in that moment waits behind its
// write.
func TestReadWaitsForRequeuedWrite(t *testing.T) {
	for name, end := range map[string]func(*node, any){
		"not done": func(f *node, tag any) { f.Failed(tag, false) },
		"unknown":  func(f *node, tag any) { f.Failed(tag, true) },
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newNode(t)
			serve(f)
			arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
			end(f, s.tags[0])
			arrive(f, get, strings.Repeat("b", 16), "__srcId", "c")
			arrive(f, get, strings.Repeat("c", 16), "__srcId", "other")
			if len(s.reads) != 1 || s.reads[0].(*pending.Request).Correlation[0] != 'c' {
				t.Error("the GET is read beside the log; the write that its client sent before it waits for the next leadership")
			}
			f.endLeadership(leading(f))
			if f.writes("c") != 0 {
				t.Errorf("writes under way after the leadership: %d", f.writes("c"))
			}
			for _, tag := range s.tags[1:] {
				f.Failed(tag, false)
			}
			serve(f)
			if len(s.tags) != 4 || s.tags[2] != s.tags[0] || s.tags[3] != s.tags[1] {
				t.Errorf("%d requests were proposed", len(s.tags))
			}
		})
	}
}

// A GET follows the writes of its client: through the log while they are under way, else by read index.
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

// A SCAN follows the writes of its client, too. It is never in the log: a no-op goes there behind the writes, and the SCAN is read when that is applied.
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
	if len(s.reads) != 2 || s.reads[1] != any(f.list()[1]) {
		t.Fatalf("%d read after the no-op", len(s.reads))
	}
	if len(o.outputs) != 0 {
		t.Fatal("the result of the no-op is the reply")
	}
	f.ReadDone(s.reads[1], 12, fsm.Result{Code: fsm.CodeKeys, Page: &fsm.KeyPage{Keys: []string{"k"}}})
	if len(o.outputs) != 1 || string(o.outputs[0].Encode(time.Now()).Payload) != "*1\r\n*1\r\n$1\r\nk\r\n" {
		t.Fatalf("%d replies", len(o.outputs))
	}
	o.deliver()
	if f.held() != 2 || f.writes("c") != 1 {
		t.Errorf("%d requests, %d writes are left", f.held(), f.writes("c"))
	}
}

// A new command or option goes into the log only when every member knows it. Until then, it goes there as the error that an older member would answer.
func TestNewOptionsWaitForAllMembers(t *testing.T) {
	for name, test := range map[string]struct {
		payload []byte
		version uint32 // from which on it is known
		want    fsm.Command
		before  fsm.ErrorCode
	}{
		"DEL IFVER": {
			resp.AppendArray(nil, "DEL", "k", "IFVER", "1:2:StateStore"), fsm.VersionIfVersion,
			fsm.Command{Kind: fsm.KindDel, Condition: fsm.IfVersion},
			fsm.ErrorArguments,
		},
		"TXN": {
			resp.AppendArray(nil, "TXN", array("SET", "k", "v")), fsm.VersionTxn, fsm.Command{Kind: fsm.KindTxn}, fsm.ErrorUnknownCommand,
		},
		"KEYNOTIFY GLOB":      {resp.AppendArray(nil, "KEYNOTIFY", "k*", "GLOB"), fsm.VersionPatternWatch, fsm.Command{Kind: fsm.KindKeyNotify, Pattern: true}, fsm.ErrorSyntax},
		"KEYNOTIFY GLOB STOP": {resp.AppendArray(nil, "KEYNOTIFY", "k*", "GLOB", "STOP"), fsm.VersionPatternWatch, fsm.Command{Kind: fsm.KindKeyNotifyStop, Pattern: true}, fsm.ErrorArguments},
	} {
		for version, want := range map[uint32]fsm.Command{test.version - 1: {Kind: fsm.KindInvalid, Error: test.before}, test.version: test.want} {
			t.Run(fmt.Sprintf("%s, version %d", name, version), func(t *testing.T) {
				f, s := newNode(t)
				f.Applied(&fsm.EntryOutcome{Index: 1, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart, Version: version}}, Results: make([]fsm.Result, 1)}, nil)
				serve(f)
				arrive(f, string(test.payload), "0123456789abcdef")
				if len(s.proposed) != 1 {
					t.Fatalf("%d commands are proposed", len(s.proposed))
				}
				if got := s.proposed[0]; got.Kind != want.Kind || got.Condition != want.Condition || got.Pattern != want.Pattern || got.Error != want.Error {
					t.Errorf("%+v is proposed, want %+v", got, want)
				}
			})
		}
	}
}

func array(arguments ...string) string { return string(resp.AppendArray(nil, arguments...)) }

// A value that exceeds a limit does not go into the log. The request keeps the value, because another leader may know other limits. The command bounds its
// reply to what the broker accepts.
func TestTransactionIsBoundedBeforeTheLog(t *testing.T) {
	f, s := newNode(t)
	settings := fsm.DefaultSettings()
	settings.Limits.ValueBytes = 10
	f.Applied(&fsm.EntryOutcome{Index: 1, Commands: []fsm.Command{{Kind: fsm.KindLeaderStart, Version: fsm.VersionTxn}}, Results: make([]fsm.Result, 1)}, nil)
	o := serve(f)
	o.maxPacket = 1000
	f.Applied(&fsm.EntryOutcome{Index: 2, Commands: []fsm.Command{{Kind: fsm.KindConfigure, Settings: &settings}}, Results: make([]fsm.Result, 1)}, nil)
	arrive(f, array("TXN", array("SET", "a", "short"), array("SET", "b", "much too long"), array("GET", "c")), "0123456789abcdef")
	if len(s.proposed) != 1 {
		t.Fatalf("%d commands are proposed", len(s.proposed))
	}
	got, request := s.proposed[0], s.tags[0].(*pending.Request)
	if string(got.Operations[0].Value) != "short" || !got.Operations[1].Oversize || got.Operations[1].Value != nil || got.Operations[2].Oversize {
		t.Errorf("%+v is proposed", got.Operations)
	}
	if kept := request.Command.Operations[1]; string(kept.Value) != "much too long" || kept.Oversize {
		t.Errorf("the request has %+v", kept)
	}
	if want := 1000 - int64(len(request.ResponseTopic)+16+replyFields); got.MaxReply != want {
		t.Errorf("the reply may have %d bytes, want %d", got.MaxReply, want)
	}
	f.Applied(&fsm.EntryOutcome{Index: 3, Commands: s.proposed, Results: []fsm.Result{{
		Code: fsm.CodeReplies, Replies: []fsm.Result{{Code: fsm.CodeOK}, {Code: fsm.CodeDeleted}, {Code: fsm.CodeValue, Value: "v"}, {Code: fsm.CodeNull}, {Code: fsm.CodeMissing}},
	}}}, s.tags)
	if len(o.outputs) != 1 || string(o.outputs[0].Encode(time.Now()).Payload) != "*5\r\n+OK\r\n:1\r\n$1\r\nv\r\n$-1\r\n:0\r\n" {
		t.Errorf("%d replies", len(o.outputs))
	}
}

// replyFields is not smaller than the longest packet of a reply without its payload, its topic and the Correlation Data.
func TestReplyFieldsCoverTheFieldsOfAReply(t *testing.T) {
	m := fsm.New()
	entry := func(number uint64, command fsm.Command) *fsm.EntryOutcome {
		outcome, err := m.Apply(number+1, 1, fsm.AppendEntry(nil, &fsm.Entry{Term: min(number, 1), Number: number, Wall: 1 << 62, Commands: []fsm.Command{command}}))
		if err != nil {
			t.Fatal(err)
		}
		return outcome
	}
	entry(0, fsm.Command{Kind: fsm.KindLeaderStart})
	outcome := entry(1, fsm.Command{Kind: fsm.KindTxn, Operations: []fsm.Command{{Kind: fsm.KindSet, Key: []byte("k")}}})
	r := wire.Request{ResponseTopic: "t", Correlation: []byte("c")}
	encoded := mqttconn.AppendPublish(nil, wire.EncodeReply(&r, time.Now().Add(time.Hour), &outcome.Results[0], time.Now()))
	if fields := len(encoded) - len("*1\r\n+OK\r\n") - 2; fields > replyFields-10 {
		t.Errorf("%d bytes of a reply are neither payload, topic nor Correlation Data", fields)
	}
}

// The delivery watermark passes an entry when the broker has the outputs of that entry and of all entries before it, and not earlier.
func TestWatermarkCoversWhatTheBrokerHas(t *testing.T) {
	f, s := newNode(t)
	o := serve(f)
	for i, correlation := range []string{"0123456789abcde0", "0123456789abcde1", "0123456789abcde2"} {
		arrive(f, del, correlation, "__srcId", correlation)
		f.Applied(s.outcome(uint64(10+i), fsm.CodeDeleted), s.tags[i:])
	}
	outputs := map[uint64]*publish.Output{}
	for _, output := range o.outputs {
		outputs[output.Index] = output
	}
	for _, step := range []struct{ index, mark uint64 }{{11, 0}, {10, 11}, {12, 12}} {
		if o.leader.Published(outputs[step.index]); s.published != step.mark {
			t.Errorf("after %d the mark is %d, want %d", step.index, s.published, step.mark)
		}
	}
}

// A held request keeps the whole message in memory, so the size of the whole message counts.
func TestHeldBytesAreThoseThatAreKept(t *testing.T) {
	f, _ := newNode(t, func(c *Config) { c.HoldBytes = 1 << 20 })
	for i := range 20 {
		f.receiver.decodeAndAdmit(t.Context(), mqttconn.Message{Size: 100_000, Publish: &paho.Publish{QoS: 1, Topic: topics.Invoke, Payload: []byte(get), Properties: &paho.PublishProperties{
			ResponseTopic: "clients/c/r", CorrelationData: fmt.Appendf(nil, "%016d", i),
		}}}, ingest.Arrival{At: time.Now()}, func() {})
	}
	if f.held() != 10 || f.heldBytes() < 1_000_000 {
		t.Errorf("%d held, of %d bytes", f.held(), f.heldBytes())
	}
}
