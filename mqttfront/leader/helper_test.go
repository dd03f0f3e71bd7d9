package leader

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/outbox"
	"holdfast/mqttfront/session"
	"holdfast/mqttfront/wire"
)

// fakeStore keeps what the front end gives it.
type fakeStore struct {
	machine   *fsm.Machine
	refuses   bool // it takes nothing up
	proposed  []fsm.Command
	tags      []any
	reads     []any
	published uint64
}

func (s *fakeStore) Propose(c fsm.Command, tag any) bool {
	if s.refuses {
		return false
	}
	s.proposed, s.tags = append(s.proposed, c), append(s.tags, tag)
	return true
}

func (s *fakeStore) Read(_ *fsm.Command, tag any) bool {
	if s.refuses {
		return false
	}
	s.reads = append(s.reads, tag)
	return true
}
func (s *fakeStore) Flush()                        {}
func (s *fakeStore) HorizonAge() time.Duration     { return 0 }
func (s *fakeStore) SetHorizon(time.Duration)      {}
func (s *fakeStore) Confirm(context.Context) error { return nil }
func (s *fakeStore) View(f func(*fsm.Machine))     { f(s.machine) }
func (s *fakeStore) SetPublished(index uint64)     { s.published = index }

// node is the part of a front end that this package implements or uses.
type node struct {
	*Dispatcher
	clients    *Clients
	receiver   *Receiver
	leader     *Leader // of the last leadership
	reconnects int     // how often the connection was ended by which requests come
}

func newNode(t testing.TB, change ...func(*Config)) (*node, *fakeStore) {
	t.Helper()
	return newNodeOf(t, broker.NoDriver{}, wire.Identity{}, change...)
}

func newNodeOf(t testing.TB, driver broker.Driver, identity wire.Identity,
	change ...func(*Config),
) (*node, *fakeStore) {
	t.Helper()
	config := DefaultConfig()
	for _, f := range change {
		f(&config)
	}
	n := &node{Dispatcher: NewDispatcher(&config, metrics.New(prometheus.NewRegistry()),
		slog.New(slog.DiscardHandler))}
	store := &fakeStore{machine: fsm.New()}
	n.SetStore(store)
	n.clients = n.NewClients(driver)
	decoder := wire.Decoder{
		Identity: identity, DefaultExpiry: time.Minute, MaxExpiry: 10 * time.Minute,
		Margin: config.DedupMargin + time.Minute + config.MaxWait(),
	}
	n.receiver = NewReceiver(n.Dispatcher, driver, decoder, nil, n.clients.Kick, noQuestion)
	return n, store
}

// fakeOutbox keeps what a leader sends.
type fakeOutbox struct {
	leader *Leader
	// reports whether an output for a client is given up; nil gives up none
	givesUp   func(client string) bool
	maxPacket int64 // 0 is no limit
	outputs   []*outbox.Output
}

func (o *fakeOutbox) Send(client string, output *outbox.Output) (givenUp []*outbox.Output) {
	if o.givesUp != nil && o.givesUp(client) {
		return []*outbox.Output{output}
	}
	o.outputs = append(o.outputs, output)
	return nil
}

func (o *fakeOutbox) MaxPacket() int64 { return cmp.Or(o.maxPacket, math.MaxInt64) }

// deliver tells the leader that all outputs are published.
func (o *fakeOutbox) deliver() {
	for _, output := range o.outputs {
		o.leader.Published(output)
	}
	o.outputs = o.outputs[:0]
}

// serve begins a leadership of the node.
func serve(f *node) *fakeOutbox { return serveGivingUp(f, nil) }

// serveGivingUp is serve, with an outbox that gives up the outputs for some clients.
func serveGivingUp(f *node, givesUp func(client string) bool) *fakeOutbox {
	f.leader = f.NewLeader(f.clients, func(error) { f.reconnects++ })
	o := &fakeOutbox{leader: f.leader, givesUp: givesUp}
	f.Begin(f.leader, o)
	return o
}

// end ends the leadership of the node.
func (f *node) end() {
	f.current.Store(nil)
	f.leader.end()
}

// sent returns how many outputs a leader has sent that are not delivered.
func (f *node) sent() int { return len(f.leader.sender.(*fakeOutbox).outputs) }

const (
	del = "*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n"
	get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
)

// writes returns how many requests of a client are on their way through the log.
func (f *node) writes(client string) int { return f.leader.proposals[client] }

// arrive hands a request to a front end. *acknowledged becomes true when the front end acknowledges
// the request to the broker. user has names and values of user properties. The client is c, unless
// they have another __srcId.
func arrive(f *node, payload, correlation string, user ...string) (acknowledged *bool) {
	return arriveWith(f, payload, correlation, nil, user...)
}

// message returns a request as the broker delivers it. See arrive for user.
func message(payload, correlation string, expiry *uint32, user ...string) mqttconn.Message {
	p := &mqttconn.Publish{
		QoS: 1, Topic: topics.Invoke, Payload: []byte(payload),
		Properties: &mqttconn.Properties{
			ResponseTopic: "clients/c/r", CorrelationData: []byte(correlation),
			MessageExpiry: expiry,
		},
	}
	for i := 0; i < len(user); i += 2 {
		p.Properties.User.Add(user[i], user[i+1])
	}
	return mqttconn.Message{Publish: p}
}

func arriveWith(f *node, payload, correlation string, expiry *uint32,
	user ...string,
) (acknowledged *bool) {
	acknowledged = new(bool)
	f.receiver.decodeAndAdmit(context.Background(), message(payload, correlation, expiry, user...),
		now(), func() { *acknowledged = true })
	return acknowledged
}

// outcome returns the outcome of an entry that has only the last proposed command.
func (s *fakeStore) outcome(index uint64, code fsm.Code) *fsm.EntryOutcome {
	n := len(s.proposed) - 1
	return &fsm.EntryOutcome{
		Index: index, Commands: s.proposed[n:],
		Results: []fsm.Result{{Code: code}},
	}
}

// commit applies an entry to the machine of a store.
func commit(t *testing.T, s *fakeStore, entry fsm.Entry) *fsm.EntryOutcome {
	t.Helper()
	if s.machine.Status().Index == 0 {
		apply(t, s, &fsm.Entry{Commands: []fsm.Command{{
			Kind: fsm.KindLeaderStart, Nonce: 1,
			Version: fsm.Version,
		}}})
	}
	entry.Term, entry.Number = 1, s.machine.Status().Index
	return apply(t, s, &entry)
}

func apply(t *testing.T, s *fakeStore, entry *fsm.Entry) *fsm.EntryOutcome {
	t.Helper()
	outcome, err := s.machine.Apply(s.machine.Status().Index+1, 1, fsm.AppendEntry(nil, entry))
	if err != nil || outcome.Skipped {
		t.Fatalf("not applied: %v", err)
	}
	return outcome
}

// now returns the arrival of what the broker received just now.
func now() session.Arrival { return read(0) }

// read returns the arrival of what was read some time ago, and was received just before.
func read(ago time.Duration) session.Arrival {
	at := time.Now().Add(-ago)
	return session.Arrival{At: at, ReceivedAfter: at, SentAfter: at}
}

// noQuestion takes every message for a request of a client.
func noQuestion(mqttconn.Message) bool { return false }
