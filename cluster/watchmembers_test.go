package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// watched is a memberWatch of the member "self" that runs without a node.
type watched struct {
	*memberWatch
	exits chan error

	mu    sync.Mutex
	calls []peer.Method // what it called besides MethodPeerStatus
}

// watch runs a memberWatch in a bubble until the test ends. leader is the leader that it hears of,
// servers its configuration, and isMember the answer of all members to MethodIsMember.
func watch(t *testing.T, servers []raft.Server, leader raft.ServerID, isMember string) *watched {
	t.Helper()
	w := &watched{exits: make(chan error, 1)}
	client := peerFunc(func(_ context.Context, _ raft.Server, method peer.Method, _ []byte) ([]byte,
		error,
	) {
		if method == peer.MethodPeerStatus {
			return nil, peer.ErrUnreachable
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls = append(w.calls, method)
		if isMember == "" {
			return nil, peer.ErrUnreachable
		}
		return []byte(isMember), nil
	})
	list := func() []raft.Server { return servers }
	monotonic := func() time.Duration { return time.Hour }
	w.memberWatch = &memberWatch{
		self: raft.Server{ID: "self", Address: "self"}, servers: list,
		leader: func() raft.ServerID { return leader }, applied: func() uint64 { return 1 },
		client: client, maxClockOffset: time.Hour, election: time.Second, leaderChanged: func() {},
		log: slog.New(slog.DiscardHandler),
		exit: func(err error) {
			select {
			case w.exits <- err:
			default:
			}
		},
		peers:   peer.NewStatuses("self", client, list, monotonic),
		clock:   newClusterClock(Clock{Wall: func() int64 { return 1 }, Monotonic: monotonic}),
		serving: func() bool { return false },
		sameBroker: &sameBroker{
			id: "self", broker: &fakeBroker{},
			peers: peer.NewStatuses("self", client, list, monotonic), servers: list,
			leader: func() raft.ServerID { return leader }, serving: func() bool { return false },
		},
		start: func(work func()) bool {
			go work()
			return true
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return w
}

func (w *watched) called(method peer.Method) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.calls, method)
}

// † A node ends its process when the leader says, through any member, that the node is no member.
// It asks only after it has heard of no leader, or was missing from its own configuration, for
// several polls. Silence of the others is no answer.
func TestOnlyTheLeadersWordEndsARemovedNode(t *testing.T) {
	for name, test := range map[string]struct {
		servers  []raft.Server
		leader   raft.ServerID
		isMember string
		asks     bool
		exits    bool
	}{
		"a member that hears of a leader": {
			serversOf("self", "a", "b"), "a", "false", false,
			false,
		},
		"a removed node": {serversOf("a", "b"), "a", "false", true, true},
		"a node without a leader, removed": {
			serversOf("self", "a", "b"), "", "false", true,
			true,
		},
		"a node without a leader, a member": {
			serversOf("self", "a", "b"), "", "true", true,
			false,
		},
		"a node without a leader, no answers": {serversOf("self", "a", "b"), "", "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, test.servers, test.leader, test.isMember)
				time.Sleep((maxIsolatedPolls - 1) * peer.PollInterval / 4)
				if w.called(peer.MethodIsMember) {
					t.Error("it asks before it was isolated for some polls")
				}
				time.Sleep(10 * peer.PollInterval)
				if w.called(peer.MethodIsMember) != test.asks {
					t.Errorf("it asks: %v, want %v", !test.asks, test.asks)
				}
				select {
				case err := <-w.exits:
					if !test.exits || !errors.Is(err, ErrRemoved) {
						t.Errorf("it ends the process: %v", err)
					}
				default:
					if test.exits {
						t.Error("it does not end the process")
					}
				}
			})
		})
	}
}

// A member whose address has changed asks to have it changed in the configuration. One whose
// address is in the configuration asks nothing.
func TestMemberAnnouncesItsNewAddress(t *testing.T) {
	for name, test := range map[string]struct {
		address raft.ServerAddress // in the configuration
		asks    bool
	}{
		"as in the configuration": {"self", false},
		"a new one":               {"old", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers := append(serversOf("a", "b"),
					raft.Server{ID: "self", Address: test.address})
				w := watch(t, servers, "a", "true")
				time.Sleep(peer.PollInterval)
				synctest.Wait()
				if w.called(peer.MethodJoin) != test.asks {
					t.Errorf("it asks: %v", !test.asks)
				}
			})
		})
	}
}

// A change of the leader is counted once.
func TestChangeOfLeaderIsCountedOnce(t *testing.T) {
	var changes atomic.Int32
	leader := raft.ServerID("a")
	w := memberWatch{
		servers:       func() []raft.Server { return nil },
		leader:        func() raft.ServerID { return leader },
		leaderChanged: func() { changes.Add(1) },
		log:           slog.New(slog.DiscardHandler),
	}
	var last lastSeen
	for _, leader = range []raft.ServerID{"a", "a", "", "a", "b", "b", "", "a"} {
		w.logMembers(&last)
	}
	if changes.Load() != 3 {
		t.Errorf("%d changes", changes.Load())
	}
}
