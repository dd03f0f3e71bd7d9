package role

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/publish"
	"holdfast/mqttfront/wire"
)

// fakeStore keeps what the front end gives it.
type fakeStore struct {
	alone     bool
	told      [][]byte                   // the messages that were broadcast
	held      map[string][][]byte        // by node: the pages of the requests that it holds
	asked     func() map[string][][]byte // replaces held if it is set
	cut       bool                       // no node's last page arrives
	machine   *fsm.Machine
	proposed  []fsm.Command
	tags      []any
	reads     []any
	published uint64
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
func (s *fakeStore) ClusterClock() int64                         { return time.Now().UnixMilli() }
func (s *fakeStore) Alone() bool                                 { return s.alone }
func (s *fakeStore) Broadcast(_ context.Context, message []byte) { s.told = append(s.told, message) }

func (s *fakeStore) CollectHeld(_ context.Context, _ time.Duration, take func(string, []byte, bool)) {
	held := s.held
	if s.asked != nil {
		held = s.asked()
	}
	for node, pages := range held {
		for i, page := range pages {
			take(node, page, i == len(pages)-1 && !s.cut)
		}
	}
}
func (s *fakeStore) Confirm(context.Context) error { return nil }
func (s *fakeStore) View(f func(*fsm.Machine))     { f(s.machine) }
func (s *fakeStore) SetPublished(index uint64)     { s.published = index }

// node is the part of a front end that this package implements or uses.
type node struct {
	*Dispatcher
	barrier  *ingest.Barrier
	clients  *Clients
	receiver *Receiver
	begun    time.Time // when its session began
}

func (n *node) newLeader() *Leader {
	return n.Dispatcher.NewLeader(n.barrier, func() time.Time { return n.begun }, n.clients)
}

func newNode(t testing.TB, change ...func(*Config)) (*node, *fakeStore) {
	t.Helper()
	return newNodeOf(t, broker.NoDriver{}, wire.Identity{}, change...)
}

func newNodeOf(t testing.TB, driver broker.Driver, identity wire.Identity, change ...func(*Config)) (*node, *fakeStore) {
	t.Helper()
	config := DefaultConfig()
	for _, f := range change {
		f(&config)
	}
	n := &node{Dispatcher: NewDispatcher(&config, metrics.New(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)), barrier: ingest.NewBarrier(), begun: time.Now()}
	store := &fakeStore{machine: fsm.New()}
	n.SetStore(store)
	n.clients = n.NewClients(driver)
	decoder := wire.Decoder{
		Identity: identity, DefaultExpiry: time.Minute, MaxExpiry: 10 * time.Minute, Margin: config.DedupMargin + time.Minute + config.MaxWait(),
	}
	n.receiver = NewReceiver(n.Dispatcher, driver, decoder, nil, n.clients.Kick, noQuestion)
	return n, store
}

// fakeOutbox keeps what a leader sends.
type fakeOutbox struct {
	leader    *Leader
	givesUp   func(client string) bool // reports whether an output for a client is given up; nil gives up none
	maxPacket int64                    // 0 is no limit
	outputs   []*publish.Output
}

func (o *fakeOutbox) Send(client string, output *publish.Output) (givenUp []*publish.Output) {
	if o.givesUp != nil && o.givesUp(client) {
		return []*publish.Output{output}
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
func serve(f *node) *fakeOutbox { return serveWith(f, PeerRequests{}) }

// serveWith is serve, with what other nodes hold.
func serveWith(f *node, held PeerRequests) *fakeOutbox {
	l := f.newLeader()
	o := &fakeOutbox{leader: l}
	f.BeginLeading(l, held, o)
	return o
}

// serveGivingUp is serve, with an outbox that gives up the outputs for some clients.
func serveGivingUp(f *node, givesUp func(client string) bool) *fakeOutbox {
	l := f.newLeader()
	o := &fakeOutbox{leader: l, givesUp: givesUp}
	f.BeginLeading(l, PeerRequests{}, o)
	return o
}

// sent returns how many outputs a leader has sent that are not delivered.
func (f *node) sent() int {
	if o, ok := leading(f).sender.(*fakeOutbox); ok {
		return len(o.outputs)
	}
	return 0
}

// leading returns the node's role if it is a leader. Otherwise it returns a new leader, which does not become the node's role.
func leading(f *node) *Leader {
	if l, leads := f.role.(*Leader); leads {
		return l
	}
	return f.newLeader()
}

const (
	del = "*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n"
	get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
)

// first and last return the first and the last request that a front end holds. There must be one.
func (f *node) first() *pending.Request { return f.list()[0] }
func (f *node) last() *pending.Request  { return f.list()[f.held()-1] }

// held returns how many requests a front end holds.
func (f *node) held() int { return f.pending.Len() }

// heldBytes returns the size of these requests.
func (f *node) heldBytes() int { return f.pending.Bytes() }

// writes returns how many requests of a client are on their way through the log.
func (f *node) writes(client string) int { return f.pending.Proposals(client) }

// reported returns the requests that the leader's next report will name: no node need hold them any longer.
func (f *node) reported() []fsm.RequestID { return leading(f).toRelease }

// merge makes a leader take up what other nodes hold.
func (f *node) merge(m *fsm.Machine, byNode map[string][]*pending.Request) (added []*pending.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return leading(f).mergePeerRequestsLocked(m, byNode)
}

// mergeAndExecute is merge, and executes what was added.
func (f *node) mergeAndExecute(m *fsm.Machine, byNode map[string][]*pending.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range leading(f).mergePeerRequestsLocked(m, byNode) {
		leading(f).executeLocked(r, false)
	}
}

// add adds requests to those that a front end holds.
func (f *node) add(requests ...*pending.Request) {
	for _, r := range requests {
		f.pending.Add(r)
	}
}

// locked runs work with the mutex of the Dispatcher locked.
func (f *node) locked(work func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	work()
}

// drop removes a request from those that a front end holds.
func (f *node) drop(r *pending.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked(r)
}

// list returns all requests that a front end holds, in their order.
func (f *node) list() []*pending.Request { return slices.Collect(f.pending.All()) }

// arrive hands a request to a front end. *acknowledged becomes true when the front end acknowledges the request to the broker. user has names and values
// of user properties. The client is c, unless they have another __srcId.
func arrive(f *node, payload, correlation string, user ...string) (acknowledged *bool) {
	return arriveWith(f, payload, correlation, nil, user...)
}

// withExpiry is arrive, of a message that expires after some seconds.
func withExpiry(f *node, payload, correlation string, seconds uint32, user ...string) {
	arriveWith(f, payload, correlation, &seconds, user...)
}

// message returns a request as the broker delivers it. See arrive for user.
func message(payload, correlation string, expiry *uint32, user ...string) mqttconn.Message {
	p := &paho.Publish{QoS: 1, Topic: topics.Invoke, Payload: []byte(payload), Properties: &paho.PublishProperties{
		ResponseTopic: "clients/c/r", CorrelationData: []byte(correlation), MessageExpiry: expiry,
	}}
	for i := 0; i < len(user); i += 2 {
		p.Properties.User.Add(user[i], user[i+1])
	}
	return mqttconn.Message{Publish: p}
}

func arriveWith(f *node, payload, correlation string, expiry *uint32, user ...string) (acknowledged *bool) {
	acknowledged = new(bool)
	f.receiver.decodeAndAdmit(context.Background(), message(payload, correlation, expiry, user...), ingest.Arrival{At: time.Now()}, func() { *acknowledged = true })
	return acknowledged
}

// outcome returns the outcome of an entry that has only the last proposed command.
func (s *fakeStore) outcome(index uint64, code fsm.Code) *fsm.EntryOutcome {
	n := len(s.proposed) - 1
	return &fsm.EntryOutcome{Index: index, Commands: s.proposed[n:], Results: []fsm.Result{{Code: code}}}
}

// noQuestion takes every message for a request of a client.
func noQuestion(mqttconn.Message) bool { return false }
