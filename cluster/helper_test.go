package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster/peer"
	"holdfast/cluster/raftfix"
	"holdfast/cluster/raftlog"
	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/policy"
)

// recorder is an Observer that records its calls.
type recorder struct {
	mu       sync.Mutex
	outcomes []fsm.EntryOutcome
	serving  chan uint64 // the term of each call of Serve

	brokerDown atomic.Bool
}

// reply is the tag of a command or a read. done is closed when that has ended.
type reply struct {
	done   chan struct{}
	index  uint64
	result fsm.Result
	failed bool
}

func newReply() *reply { return &reply{done: make(chan struct{})} }

func (r *recorder) Applied(outcome *fsm.EntryOutcome, tags []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes = append(r.outcomes, *outcome)
	for i, tag := range tags {
		if tag, ok := tag.(*reply); ok {
			tag.index, tag.result = outcome.Index, outcome.Results[i]
			close(tag.done)
		}
	}
}

func (r *recorder) Restored(fsm.Status) {}

func (r *recorder) ReadDone(tag any, index uint64, result fsm.Result) {
	waiting := tag.(*reply)
	waiting.index, waiting.result = index, result
	close(waiting.done)
}

func (r *recorder) Failed(tag any, _ bool) {
	waiting := tag.(*reply)
	waiting.failed = true
	close(waiting.done)
}

func (r *recorder) Serve(ctx context.Context, term uint64) error {
	r.serving <- term
	<-ctx.Done()
	return context.Cause(ctx)
}

func (r *recorder) BrokerDownFor() time.Duration {
	if r.brokerDown.Load() {
		return time.Hour
	}
	return 0
}

// member is a node with what a test needs to reach of it.
type member struct {
	*Node
	recorder *recorder
	exits    chan error
	wall     *fakeWall
}

// wire returns the member's transport in the network.
func (m *member) wire() *raft.InmemTransport {
	return m.env.Transport.(*raftfix.Transport).Transport.(*networkTransport).InmemTransport
}

// fakeWall is a wall clock that is ahead of the machine's by offset, in milliseconds.
type fakeWall struct {
	mu     sync.Mutex
	offset int64
}

func (w *fakeWall) now() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().UnixMilli() + w.offset
}

type memoryOffer struct {
	mu   sync.Mutex
	data []byte
}

func (o *memoryOffer) Load() ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.data, nil
}

func (o *memoryOffer) Save(data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data = data
	return nil
}

// checked returns a log that gives the entries that a test writes their checksums.
func checked(t testing.TB, log raft.LogStore) raft.LogStore {
	return raftlog.NewCheckedLog(log,
		raftlog.Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 0)
}

func memoryStores() raftlog.Stores {
	store := raft.NewInmemStore()
	return raftlog.Stores{
		Log: store, Stable: store, Snapshots: raft.NewInmemSnapshotStore(), Offered: &memoryOffer{},
		Close: func() error { return nil },
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// startMember starts a member with the given stores.
func startMember(t testing.TB, network *Network, id raft.ServerID, members []raft.Server,
	stores raftlog.Stores, change ...func(*Config, *Environment),
) *member {
	t.Helper()
	return startMemberWith(t, network, id, members, stores, func(r *recorder) Observer { return r },
		change...)
}

// startMemberWith starts a member with another observer around the recorder.
func startMemberWith(t testing.TB, network *Network, id raft.ServerID, members []raft.Server,
	stores raftlog.Stores,
	observer func(*recorder) Observer, change ...func(*Config, *Environment),
) *member {
	t.Helper()
	config := DefaultConfig()
	config.ID, config.Address, config.Members = id, raft.ServerAddress(id), members
	m := &member{
		recorder: &recorder{serving: make(chan uint64, 100)}, exits: make(chan error, 100),
		wall: &fakeWall{},
	}
	env := Environment{
		Stores: stores, Transport: network.Transport(id, config.Timing), Client: network,
		Clock:  SystemClock(),
		Random: rand.Uint64, FreeSpace: func() (uint64, bool) { return 1 << 40, false },
		Broker: &fakeBroker{},
		Exit:   func(err error) { m.exits <- err }, Log: quiet(),
		Metrics: NewMetrics(prometheus.NewRegistry()),
	}
	env.Clock.Wall = m.wall.now
	for _, f := range change {
		f(&config, &env)
	}
	node, err := Open(config, env, observer(m.recorder))
	if err != nil {
		t.Fatal(err)
	}
	m.Node = node
	network.Attach(node)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_ = m.Close(ctx)
	})
	return m
}

func servers(ids ...raft.ServerID) []raft.Server {
	var list []raft.Server
	for _, id := range ids {
		list = append(list, raft.Server{ID: id, Address: raft.ServerAddress(id)})
	}
	return list
}

// startCluster starts members with stores in memory.
func startCluster(t testing.TB, size int, change ...func(*Config, *Environment)) []*member {
	t.Helper()
	network := NewNetwork()
	var ids []raft.ServerID
	for i := range size {
		ids = append(ids, raft.ServerID(fmt.Sprintf("n%d", i+1)))
	}
	var members []*member
	for _, id := range ids {
		members = append(members, startMember(t, network, id, servers(ids...), memoryStores(),
			change...))
	}
	return members
}

// leader waits until one of the members serves, and returns it. It returns each leadership once: a
// second call waits for the next one.
func leader(t testing.TB, members ...*member) *member {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(
		5 * time.Millisecond) {
		for _, m := range members {
			if m.leadsForTest() && m.raftForTest().State() == raft.Leader {
				select {
				case <-m.recorder.serving:
					return m
				default:
				}
			}
		}
	}
	t.Fatal("nobody leads")
	return nil
}

func set(key, value string) fsm.Command {
	return fsm.Command{
		Kind: fsm.KindSet, Key: []byte(key), Value: []byte(value),
		Principal: policy.Principal{ClientID: "c"},
		Timestamp: hlc.Timestamp{Wall: time.Now().UnixMilli(), NodeID: "c"}, Lifetime: 60_000,
	}
}

func (m *member) must(t testing.TB, command fsm.Command) fsm.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	result, err := m.Execute(ctx, command)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

var errTimeout = errors.New("no answer")

func (m *member) get(key string) (string, error) {
	r := newReply()
	if !m.Read(&fsm.Command{Kind: fsm.KindGet, Key: []byte(key)}, r) {
		return "", peer.ErrNotLeader
	}
	m.Flush()
	select {
	case <-r.done:
		if r.failed {
			return "", peer.ErrNotDone
		}
		return r.result.Value, nil
	case <-time.After(10 * time.Second):
		return "", errTimeout
	}
}

// fakeSwitch is on for one member.
type fakeSwitch struct {
	mu sync.Mutex
	id raft.ServerID
}

func (s *fakeSwitch) set(id raft.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
}

func (s *fakeSwitch) is(id raft.ServerID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id == id
}
