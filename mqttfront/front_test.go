package mqttfront

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/publish"
)

// fakeStore keeps what the front end gives it.
type fakeStore struct {
	alone     bool
	told      [][]byte
	held      map[string][][]byte
	asked     func() map[string][][]byte // if it is set, what is held now
	machine   *fsm.Machine
	proposed  []fsm.Command
	tags      []any
	reads     []any
	published uint64
	dialer    *mqttconn.Dialer // of the front end
}

func (s *fakeStore) Propose(c fsm.Command, tag any) bool {
	s.proposed, s.tags = append(s.proposed, c), append(s.tags, tag)
	return true
}

func (s *fakeStore) Read(_ *fsm.Command, tag any) bool {
	s.reads = append(s.reads, tag)
	return true
}
func (s *fakeStore) Flush()                                      {}
func (s *fakeStore) Wall() int64                                 { return time.Now().UnixMilli() }
func (s *fakeStore) Alone() bool                                 { return s.alone }
func (s *fakeStore) Broadcast(_ context.Context, message []byte) { s.told = append(s.told, message) }

func (s *fakeStore) CollectHeld(_ context.Context, _ time.Duration, take func(string, []byte)) {
	held := s.held
	if s.asked != nil {
		held = s.asked()
	}
	for node, pages := range held {
		for _, page := range pages {
			take(node, page)
		}
	}
}
func (s *fakeStore) Confirm(context.Context) error { return nil }
func (s *fakeStore) View(f func(*fsm.Machine))     { f(s.machine) }
func (s *fakeStore) SetPublished(index uint64)     { s.published = index }

type fakeContact struct{ wall int64 }

func (c *fakeContact) Load() (int64, bool)   { return c.wall, c.wall != 0 }
func (c *fakeContact) Save(wall int64) error { c.wall = wall; return nil }

func newTestFront(t testing.TB, change ...func(*Config)) (*Front, *fakeStore) {
	t.Helper()
	return newTestFrontOf(t, broker.NoDriver{}, change...)
}

func newTestFrontOf(t testing.TB, driver broker.Driver, change ...func(*Config)) (*Front, *fakeStore) {
	t.Helper()
	config := DefaultConfig()
	config.Node, config.Addresses = "n1", make([]mqttconn.Address, 1)
	for _, f := range change {
		f(&config)
	}
	dialer := &mqttconn.Dialer{Addresses: []mqttconn.Address{{Host: "broker:1883"}}, Timeout: time.Second}
	f, err := New(config, World{
		Dialer: dialer, Driver: driver, Wall: func() int64 { return time.Now().UnixMilli() }, Random: func() uint64 { return 1 },
		Contact: &fakeContact{}, Log: slog.New(slog.DiscardHandler), Metrics: metrics.New(prometheus.NewRegistry()),
	})
	if err != nil {
		t.Fatal(err)
	}
	store := &fakeStore{machine: fsm.New(), dialer: dialer}
	f.SetStore(store)
	return f, store
}

// fakeOutbox keeps what a leader sends.
type fakeOutbox struct {
	leader  *leader
	full    bool // and gives everything up
	outputs []*publish.Output
}

func (o *fakeOutbox) Send(_ string, output *publish.Output) (givenUp []*publish.Output) {
	if o.full {
		return []*publish.Output{output}
	}
	o.outputs = append(o.outputs, output)
	return nil
}

// deliver publishes all that was sent.
func (o *fakeOutbox) deliver() {
	for _, output := range o.outputs {
		o.leader.Published(output)
	}
	o.outputs = o.outputs[:0]
}

// serve makes the front end serve.
func serve(f *Front) *fakeOutbox { return serveWith(f, heldElsewhere{}) }

// serveWith is serve, with what other nodes hold.
func serveWith(f *Front, held heldElsewhere) *fakeOutbox {
	l := f.newLeader()
	o := &fakeOutbox{leader: l}
	l.outbox = o
	l.begin(held)
	return o
}

// sent returns how many outputs a leader has sent that are not delivered.
func (f *Front) sent() int {
	if o, ok := leading(f).outbox.(*fakeOutbox); ok {
		return len(o.outputs)
	}
	return 0
}

// leading returns the node's role as a leader. A node that does not lead gets one that no other code knows.
func leading(f *Front) *leader {
	if l, leads := f.role.(*leader); leads {
		return l
	}
	return f.newLeader()
}

const (
	del = "*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n"
	get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
)

// first and last return requests that a front end holds, of which there is one.
func (f *Front) first() *pending.Request { return f.list()[0] }
func (f *Front) last() *pending.Request  { return f.list()[f.pending.Len()-1] }

// list returns all requests that a front end holds, in their order.
func (f *Front) list() []*pending.Request { return slices.Collect(f.pending.All()) }

// arrive hands a request of the client c to a front end, and returns whether it is acknowledged.
func arrive(f *Front, payload, correlation string, user ...string) (acknowledged *bool) {
	return arriveWith(f, payload, correlation, nil, user...)
}

// withExpiry is arrive, of a message that expires after some seconds.
func withExpiry(f *Front, payload, correlation string, seconds uint32, user ...string) {
	arriveWith(f, payload, correlation, &seconds, user...)
}

// message returns a request of the client c.
func message(payload, correlation string, expiry *uint32, user ...string) mqttconn.Message {
	p := &paho.Publish{QoS: 1, Topic: topics.Invoke, Payload: []byte(payload), Properties: &paho.PublishProperties{
		ResponseTopic: "clients/c/r", CorrelationData: []byte(correlation), MessageExpiry: expiry,
	}}
	for i := 0; i < len(user); i += 2 {
		p.Properties.User.Add(user[i], user[i+1])
	}
	return mqttconn.Message{Publish: p}
}

func arriveWith(f *Front, payload, correlation string, expiry *uint32, user ...string) (acknowledged *bool) {
	acknowledged = new(bool)
	f.receiver.decodeAndAdmit(context.Background(), message(payload, correlation, expiry, user...), time.Now(), false, func() { *acknowledged = true })
	return acknowledged
}

func (s *fakeStore) outcome(index uint64, code fsm.Code) *fsm.Outcome {
	n := len(s.proposed) - 1
	return &fsm.Outcome{Index: index, Commands: s.proposed[n:], Results: []fsm.Result{{Code: code}}}
}

// † What has taken effect and has no identity is never proposed again.
func TestRequestWithoutIdentityIsNotRepeated(t *testing.T) {
	for name, end := range map[string]func(*Front, *fakeStore){
		"its reply was on its way": func(f *Front, s *fakeStore) {
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
			leading(f).stopServing()
		},
		"it was applied when the leadership had ended": func(f *Front, s *fakeStore) {
			leading(f).stopServing()
			f.Applied(s.outcome(5, fsm.CodeDeleted), s.tags)
		},
		"its outcome is unknown": func(f *Front, s *fakeStore) {
			leading(f).stopServing()
			f.Failed(s.tags[0], true)
		},
	} {
		f, s := newTestFront(t)
		serve(f)
		arrive(f, del, "short")
		end(f, s)
		serve(f)
		if len(s.proposed) != 1 || f.pending.Len() != 0 || f.busy != 0 {
			t.Errorf("%s: proposed %d times, %d held, %d busy", name, len(s.proposed), f.pending.Len(), f.busy)
		}
	}
}

// What definitely had no effect is executed by the next leadership, and so is a request with an identity, whatever became of it.
func TestRequestsGoToTheNextLeadership(t *testing.T) {
	for name, test := range map[string]struct {
		correlation string
		unknown     bool
	}{"not done": {"short", false}, "unknown, with an identity": {"0123456789abcdef", true}} {
		f, s := newTestFront(t)
		serve(f)
		arrive(f, del, test.correlation)
		leading(f).stopServing()
		f.Failed(s.tags[0], test.unknown)
		serve(f)
		if len(s.proposed) != 2 || f.busy != 1 {
			t.Errorf("%s: proposed %d times, %d busy", name, len(s.proposed), f.busy)
		}
	}
}

// A node that does not lead keeps writes with an identity, once, and lets go of them when they are known to be published.
func TestFollowerHolds(t *testing.T) {
	f, s := newTestFront(t)
	if !*arrive(f, del, "0123456789abcdef") {
		t.Error("with other nodes, PUBACK follows the copy into memory")
	}
	arrive(f, del, "0123456789abcdef") // redelivered
	arrive(f, del, "short")
	if f.pending.Len() != 1 {
		t.Fatalf("%d held", f.pending.Len())
	}
	command := f.first().Command
	f.Applied(&fsm.Outcome{Index: 7, Commands: []fsm.Command{command}, Results: []fsm.Result{{Code: fsm.CodeDeleted}}, Published: 6}, nil)
	if f.pending.Len() != 1 {
		t.Error("released when applied, before it was published")
	}
	f.Applied(&fsm.Outcome{Index: 8, Published: 7}, nil)
	if f.pending.Len() != 0 || f.pending.Bytes() != 0 || len(s.proposed) != 0 {
		t.Errorf("%d held, %d bytes", f.pending.Len(), f.pending.Bytes())
	}
}

// In a cluster of one everything is kept until it is answered, and acknowledged then.
func TestAloneAcknowledgesWhatIsAnswered(t *testing.T) {
	f, s := newTestFront(t)
	s.alone = true
	acknowledged := arrive(f, get, "short")
	if *acknowledged || f.pending.Len() != 1 {
		t.Fatal("acknowledged before it was answered, or not kept")
	}
	o := serve(f)
	f.ReadDone(s.reads[0], 3, fsm.Result{Code: fsm.CodeNull})
	if *acknowledged {
		t.Fatal("acknowledged before the broker has the reply")
	}
	o.deliver()
	if !*acknowledged || f.pending.Len() != 0 || f.busy != 0 {
		t.Error("not let go")
	}
}

// † Nodes whose identity settings differ, as while a change is rolled out, give one message one identity: else it would be executed twice.
func TestIdentityOfARequestDependsOnItsBytes(t *testing.T) {
	leader, s := newTestFront(t)
	other, _ := newTestFront(t, func(c *Config) { c.Identity.ClientIDProperty, c.Identity.UsernameProperty = "client-id", "user" })
	serve(leader)
	properties := []string{"__srcId", "app", "client-id", "app-0", "user", "u"}
	for _, f := range []*Front{leader, other} {
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

// An entry that fails gives its commands back while the leadership goes on for a moment: a GET that the client sends then waits behind its write.
func TestReadsFollowWritesThatWereGivenBack(t *testing.T) {
	for name, end := range map[string]func(*Front, any){
		"not done": func(f *Front, tag any) { f.Failed(tag, false) },
		"unknown":  func(f *Front, tag any) { f.Failed(tag, true) },
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newTestFront(t)
			serve(f)
			arrive(f, del, strings.Repeat("a", 16), "__srcId", "c")
			end(f, s.tags[0])
			arrive(f, get, strings.Repeat("b", 16), "__srcId", "c")
			arrive(f, get, strings.Repeat("c", 16), "__srcId", "other")
			if len(s.reads) != 1 || s.reads[0].(*pending.Request).Correlation[0] != 'c' {
				t.Error("the GET is read beside the log; the write that its client sent before it waits for the next leadership")
			}
			leading(f).stopServing()
			if f.pending.Writes("c") != 0 {
				t.Errorf("writes under way after the leadership: %d", f.pending.Writes("c"))
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
	f, s := newTestFront(t)
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

// The published mark covers what the broker has, and no more.
func TestPublishedMark(t *testing.T) {
	f, s := newTestFront(t)
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

func TestConfigValidate(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Node = "" },
		func(c *Config) { c.Node = "a/b" },
		func(c *Config) { c.Addresses = nil },
		func(c *Config) { c.Publishers = 0 },
		func(c *Config) { c.BackoffMax = 0 },
	} {
		config := DefaultConfig()
		config.Node, config.Addresses = "n1", make([]mqttconn.Address, 1)
		if err := config.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&config)
		if config.Validate() == nil {
			t.Errorf("%+v is valid", config)
		}
	}
}

// Whatever is held of a request keeps all of its bytes, also those that nobody looks at: they count.
func TestHeldBytesAreThoseThatAreKept(t *testing.T) {
	f, _ := newTestFront(t, func(c *Config) { c.HoldBytes = 1 << 20 })
	for i := range 20 {
		f.receiver.decodeAndAdmit(t.Context(), mqttconn.Message{Size: 100_000, Publish: &paho.Publish{QoS: 1, Topic: topics.Invoke, Payload: []byte(get), Properties: &paho.PublishProperties{
			ResponseTopic: "clients/c/r", CorrelationData: fmt.Appendf(nil, "%016d", i),
		}}}, time.Now(), false, func() {})
	}
	if f.pending.Len() != 10 || f.pending.Bytes() < 1_000_000 {
		t.Errorf("%d held, of %d bytes", f.pending.Len(), f.pending.Bytes())
	}
}
