package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
	"holdfast/cluster/replica"
	"holdfast/fsm"
	"holdfast/internal/testwait"
)

// copyOf returns a copy of stores in memory, as a copy of a data folder is.
func copyOf(t *testing.T, stores raftlog.Stores) raftlog.Stores {
	t.Helper()
	copied := memoryStores()
	first, err := stores.Log.FirstIndex()
	last, lastErr := stores.Log.LastIndex()
	if err = errors.Join(err, lastErr); err != nil {
		t.Fatal(err)
	}
	for index := first; index <= last; index++ {
		var entry raft.Log
		if err := errors.Join(stores.Log.GetLog(index, &entry),
			copied.Log.StoreLog(&entry)); err != nil {
			t.Fatal(err)
		}
	}
	term, err := stores.Stable.GetUint64([]byte("CurrentTerm"))
	if err = errors.Join(err, copied.Stable.SetUint64([]byte("CurrentTerm"), term)); err != nil {
		t.Fatal(err)
	}
	return copied
}

// † A member whose data folder was put back to an older copy does not come back as itself: it could
// vote for a member that lacks what it had acknowledged.
func TestMemberWithAnOlderLogDoesNotComeBack(t *testing.T) {
	network := NewNetwork()
	ids := []raft.ServerID{"n1", "n2", "n3"}
	stores := map[raft.ServerID]raftlog.Stores{}
	var members []*member
	for _, id := range ids {
		stores[id] = memoryStores()
		members = append(members, startMember(t, network, id, servers(ids...), stores[id]))
	}
	n := leader(t, members...)
	n.must(t, set("k", "old"))
	var victim *member
	for _, m := range members {
		if m != n {
			victim = m
		}
	}
	id := victim.ID()
	testwait.Until(t, "it has the first entries",
		func() bool { return victim.Status().Last >= n.Status().Commit })
	older := copyOf(t, stores[id])
	for i := range 20 {
		n.must(t, set(fmt.Sprint(i), "v"))
	}
	want := n.Status().Commit
	testwait.Until(t, "the leader knows what it has",
		func() bool { return n.self.acknowledged()[id] >= want })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := victim.Close(ended); err != nil {
		t.Fatal(err)
	}
	open := func(stores raftlog.Stores) (*Node, error) {
		config := DefaultConfig()
		config.ID, config.Address = id, raft.ServerAddress(id)
		return Open(config, Environment{
			Stores: stores, Transport: network.Transport(id, config.Timing), Client: network,
			Clock:  SystemClock(),
			Random: rand.Uint64, FreeSpace: func() (uint64, bool) { return 1 << 40, false },
			Broker: &fakeBroker{}, Exit: func(err error) { t.Error(err) },
			Log: quiet(), Metrics: NewMetrics(prometheus.NewRegistry()),
		}, &recorder{serving: make(chan uint64, 100)})
	}
	if _, err := open(older); !errors.Is(err, ErrRolledBack) {
		t.Fatalf("%v, want ErrRolledBack", err)
	}
	same, err := open(stores[id])
	if err != nil {
		t.Fatal(err)
	}
	if err := same.Close(ended); err != nil {
		t.Error(err)
	}
}

// A member ends when it learns after its start that it has lost entries. No member that remembers
// them answered earlier.
func TestMemberThatLearnsOfAnOlderLogEnds(t *testing.T) {
	for name, test := range map[string]struct {
		had  uint64
		want error
	}{"it has all": {10, nil}, "one is missing": {11, ErrRolledBack}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				list := servers("self", "a")
				client := peerFunc(func(context.Context, raft.Server, peer.Method, []byte) ([]byte,
					error,
				) {
					return fmt.Appendf(nil, `{"id":"a","acknowledged":{"self":%d}}`, test.had), nil
				})
				var ended error
				w := &memberWatch{
					self: list[0], servers: func() []raft.Server { return list }, log: quiet(),
					clock: newClusterClock(SystemClock()),
					peers: peer.NewStatuses("self", client,
						func() []raft.Server { return list }, SystemClock().Monotonic),
					lastIndex: func() uint64 { return 10 }, exit: func(err error) { ended = err },
				}
				if w.poll(t.Context()); !errors.Is(ended, test.want) {
					t.Errorf("%v, want %v", ended, test.want)
				}
			})
		})
	}
}

// memberAnswer is what another member answers to the question for its hash.
type memberAnswer struct {
	hash  string
	fault error
}

// † The leader compares the replicas by itself, and says what it found until it finds otherwise, or
// leads no more.
func TestLeaderComparesTheReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := replica.New(replica.Environment{Monotonic: SystemClock().Monotonic})
		own, _ := state.Hash(0)
		answers := make(chan memberAnswer, 1)
		answers <- memberAnswer{"ffff", nil}
		answer := func(hash string, fault error) {
			<-answers
			answers <- memberAnswer{hash, fault}
		}
		var results []string
		v := &verifier{
			id: "self", servers: func() []raft.Server { return servers("self", "a") }, state: state,
			log: quiet(),
			client: peerFunc(func(context.Context, raft.Server, peer.Method, []byte) ([]byte,
				error,
			) {
				now := <-answers
				answers <- now
				return []byte(now.hash), now.fault
			}),
			execute: func(context.Context, fsm.Command) (fsm.Result, uint64, error) {
				return fsm.Result{}, 0, nil
			},
			serving: func() bool { return true },
			observe: func(v Verification) {
				results = append(results,
					fmt.Sprint(v.Agree, v.Complete))
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running error
		done := make(chan struct{})
		go func() { defer close(done); running = v.run(ctx) }()
		time.Sleep(firstVerification + time.Second)
		if err := v.divergence(); !errors.Is(err, ErrReplicasDiffer) ||
			!strings.Contains(err.Error(), "a has ffff") {
			t.Errorf("after the first comparison: %v", err)
		}
		answer("ffff", errors.New("away"))
		time.Sleep(verificationInterval)
		if v.divergence() == nil {
			t.Error("a comparison without the member that differs hides the difference")
		}
		answer(fmt.Sprintf("%016x", own), nil)
		time.Sleep(verificationInterval)
		if err := v.divergence(); err != nil {
			t.Error(err)
		}
		answer("ffff", nil)
		time.Sleep(verificationInterval)
		cancel()
		<-done
		if running != nil || v.divergence() != nil {
			t.Errorf("after its leadership: %v, %v", running, v.divergence())
		}
		if got := strings.Join(results,
			", "); got != "false true, true false, true true, false true" {
			t.Errorf("observed %s", got)
		}
	})
}
