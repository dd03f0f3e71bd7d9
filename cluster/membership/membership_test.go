package membership

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// fake is what the Membership of the leader n1 uses: raft, the other members and the state machine.
type fake struct {
	members  []raft.Server
	statuses map[raft.ServerAddress]peer.Status // of the members that answer
	// error with which they answer MethodTerm; nil for an answer with the term
	termErr    error
	pinned     map[raft.ServerID]bool
	last       uint64 // index of the last entry in the log, which is committed
	serving    bool
	configured uint64 // index of the newest configuration
	// returns the result of a leadership transfer
	transfer func(to raft.ServerID) error
	// returns the result of a membership change
	change   func(what string, id raft.ServerID) error
	executed []fsm.Command
}

// future is a raft future with a scripted error.
type future struct {
	run     func() error
	index   uint64
	servers []raft.Server
}

func (f future) Error() error                      { return f.run() }
func (f future) Index() uint64                     { return f.index }
func (f future) Configuration() raft.Configuration { return raft.Configuration{Servers: f.servers} }

func (f *fake) State() raft.RaftState { return raft.Leader }
func (f *fake) CurrentTerm() uint64   { return 3 }
func (f *fake) LastIndex() uint64     { return f.last }
func (f *fake) CommitIndex() uint64   { return f.last }

func (f *fake) GetConfiguration() raft.ConfigurationFuture {
	return future{run: func() error { return nil }, index: f.configured, servers: f.members}
}

func (f *fake) made(what string, id raft.ServerID) raft.IndexFuture {
	return future{run: func() error { return f.change(what, id) }, index: 1}
}

func (f *fake) AddVoter(id raft.ServerID, _ raft.ServerAddress, _ uint64,
	_ time.Duration,
) raft.IndexFuture {
	return f.made("add voter", id)
}

func (f *fake) AddNonvoter(id raft.ServerID, _ raft.ServerAddress, _ uint64,
	_ time.Duration,
) raft.IndexFuture {
	return f.made("add non-voter", id)
}

func (f *fake) DemoteVoter(id raft.ServerID, _ uint64, _ time.Duration) raft.IndexFuture {
	return f.made("demote", id)
}

func (f *fake) RemoveServer(id raft.ServerID, _ uint64, _ time.Duration) raft.IndexFuture {
	return f.made("remove", id)
}

func (f *fake) LeadershipTransferToServer(id raft.ServerID, _ raft.ServerAddress) raft.Future {
	return future{run: func() error { return f.transfer(id) }}
}

// Call implements peer.Client.
func (f *fake) Call(_ context.Context, member raft.Server, method peer.Method, _ []byte) ([]byte,
	error,
) {
	status, ok := f.statuses[member.Address]
	switch {
	case !ok || member.ID != "" && member.ID != status.ID:
		// a listener refuses a connection that means another id
		return nil, peer.ErrUnreachable
	case method == peer.MethodTerm && f.termErr != nil:
		return nil, f.termErr
	case method == peer.MethodTerm:
		return peer.EncodeTerm(3, 0), nil
	default:
		return json.Marshal(status)
	}
}

// newFake returns a cluster of three voters and the Membership of n1, which leads. All three
// answer. A membership change fails the test until change is replaced.
func newFake(t *testing.T) (*fake, *Membership) {
	f := &fake{
		statuses: make(map[raft.ServerAddress]peer.Status), pinned: make(map[raft.ServerID]bool),
		last: 10, serving: true,
		transfer: func(raft.ServerID) error { return nil },
		change: func(what string,
			id raft.ServerID,
		) error {
			t.Errorf("%s %s", what, id)
			return nil
		},
	}
	for _, id := range []raft.ServerID{"n1.1", "n2.1", "n3.1"} {
		address := raft.ServerAddress(peer.NodeName(id))
		f.members = append(f.members, raft.Server{ID: id, Address: address})
		f.statuses[address] = peer.Status{
			ID: id, Address: address, LastIndex: f.last,
			Version: fsm.Version, HasState: true,
		}
	}
	servers := func() []raft.Server { return f.members }
	began := time.Now()
	return f, New(Environment{
		Self: f.members[0], Raft: f, Client: f,
		Statuses: peer.NewStatuses("n1.1", f, servers,
			func() time.Duration { return time.Since(began) }),
		Servers: servers, OwnStatus: func() peer.Status { return f.statuses["n1"] },
		Serving: func() bool { return f.serving },
		Confirm: func(context.Context) error { return nil },
		CallLeader: func(context.Context, peer.Method, []byte) ([]byte,
			error,
		) {
			return []byte("passed on"), nil
		},
		Execute: func(_ context.Context, c fsm.Command) (fsm.Result, error) {
			f.executed = append(f.executed, c)
			return fsm.Result{}, nil
		},
		Version: func() uint32 { return fsm.Version },
		Pinned:  func(id raft.ServerID) bool { return f.pinned[id] },
		Go:      func(run func()) bool { go run(); return true },
		Log:     slog.New(slog.DiscardHandler),
	})
}

// A voter is not removed or demoted if the remaining voters would have no live majority.
func TestVoterStaysWithoutAMajorityOfTheOthers(t *testing.T) {
	for name, take := range map[string]func(*Membership, context.Context,
		string) error{"remove": (*Membership).Remove, "demote": (*Membership).Demote} {
		t.Run(name, func(t *testing.T) {
			f, m := newFake(t)
			delete(f.statuses, "n3")
			if err := take(m, t.Context(), "n2"); !errors.Is(err, peer.ErrRefused) {
				t.Errorf("with one of two alive: %v", err)
			}
			// it runs no raft yet
			f.statuses["n3"] = peer.Status{ID: "n3.1", Address: "n3", State: "joining"}
			if err := take(m, t.Context(), "n2"); !errors.Is(err, peer.ErrRefused) {
				t.Errorf("with one of two alive and the other not started: %v", err)
			}
			changed := ""
			f.change = func(what string, id raft.ServerID) error {
				changed = what + " " +
					string(id)
				return nil
			}
			if err := take(m, t.Context(), "n3"); err != nil || changed != name+" n3.1" {
				t.Errorf("the one that is away: %q, %v", changed, err)
			}
		})
	}
}

// A change is reported as not done only if raft's error says that raft did not take it. After any
// other error raft may still make the change.
func TestChangeTellsNotDoneFromUnknown(t *testing.T) {
	for name, test := range map[string]struct{ failed, want error }{
		"not the leader": {raft.ErrNotLeader, peer.ErrNotDone},
		"rejected by raft": {
			errors.New("configuration changed since 3 (latest is 4)"),
			peer.ErrOutcomeUnknown,
		},
		"the leadership lost": {raft.ErrLeadershipLost, peer.ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := newFake(t)
			f.change = func(string, raft.ServerID) error { return test.failed }
			if err := m.Remove(t.Context(), "n3"); !errors.Is(err, test.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// While the node closes, raft may not answer any more: a transfer is not begun, and a change that
// was begun is of unknown outcome.
func TestNothingIsAwaitedWhileTheNodeCloses(t *testing.T) {
	f, m := newFake(t)
	m.env.Go = func(func()) bool { return false }
	f.transfer = func(raft.ServerID) error { t.Error("a transfer was begun"); return nil }
	if err := m.Transfer(t.Context(), "n2"); !errors.Is(err, peer.ErrNotDone) {
		t.Errorf("transfer: %v", err)
	}
	f.change = func(string, raft.ServerID) error { return nil }
	if err := m.Remove(t.Context(), "n3"); !errors.Is(err, peer.ErrOutcomeUnknown) {
		t.Errorf("removal: %v", err)
	}
}

// A transfer whose context has ended, or for which cluster time could not be put into the log, has
// not begun.
func TestTransferThatDidNotBeginIsNotDone(t *testing.T) {
	f, m := newFake(t)
	f.transfer = func(raft.ServerID) error { t.Error("a transfer was begun"); return nil }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Transfer(ended, "n2"); !errors.Is(err, peer.ErrNotDone) {
		t.Errorf("the context has ended: %v", err)
	}
	m.env.Execute = func(context.Context, fsm.Command) (fsm.Result, error) {
		return fsm.Result{},
			context.DeadlineExceeded
	}
	if err := m.Transfer(t.Context(), "n2"); !errors.Is(err, peer.ErrNotDone) {
		t.Errorf("the time was not put into the log: %v", err)
	}
}

// Only one membership change is under way at a time. Two at once could each be safe alone, and
// leave no live majority together.
func TestChangesAreMadeOneAtATime(t *testing.T) {
	_, m := newFake(t)
	if !m.TryLock() || m.TryLock() {
		t.Fatal("the lock is not exclusive")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Remove(ctx, "n3"); !errors.Is(err, peer.ErrNotDone) {
		t.Errorf("beside another change: %v", err)
	}
	m.Unlock()
}

// † A failed transfer is not tried again before 1 s has passed and the member has every entry that
// the leader had at the failure.
func TestFailedTransferIsNotTriedAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m := newFake(t)
		var asked []raft.ServerID
		f.transfer = func(to raft.ServerID) error {
			asked = append(asked,
				to)
			return errors.New("timed out")
		}
		refresh := func(last uint64) {
			f.last = last
			status := f.statuses["n2"]
			status.LastIndex = last
			f.statuses["n2"] = status
			m.env.Statuses.Keep(m.env.Statuses.Poll(t.Context(), time.Second))
		}
		refresh(10)
		if err := m.Transfer(t.Context(), "n2"); !errors.Is(err, peer.ErrOutcomeUnknown) {
			t.Fatalf("the first: %v", err)
		}
		if err := m.Transfer(t.Context(), "n2"); !errors.Is(err, peer.ErrNotDone) ||
			len(asked) != 1 {
			t.Errorf("at once: %v, %v asked", err, asked)
		}
		time.Sleep(transferRetryDelay)
		refresh(9)
		if err := m.Transfer(t.Context(), "n2"); !errors.Is(err, peer.ErrNotDone) ||
			len(asked) != 1 {
			t.Errorf("while the member has less: %v, %v asked", err, asked)
		}
		refresh(11)
		if _ = m.Transfer(t.Context(), "n2"); len(asked) != 2 {
			t.Errorf("when it has got more: %v asked", asked)
		}
	})
}

// A transfer that raft did not begin was not done. After any other error the member may have
// received TimeoutNow (raft's request to start an election), and may still win.
func TestErrorOfATransferSaysWhetherItMayStillHappen(t *testing.T) {
	for name, test := range map[string]struct{ failed, want error }{
		"another is under way":    {raft.ErrLeadershipTransferInProgress, peer.ErrNotDone},
		"this node does not lead": {raft.ErrNotLeader, peer.ErrNotDone},
		"raft did not take it":    {raft.ErrEnqueueTimeout, peer.ErrNotDone},
		"the transfer timed out": {
			errors.New("leadership transfer timeout"),
			peer.ErrOutcomeUnknown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := newFake(t)
			f.transfer = func(raft.ServerID) error { return test.failed }
			if err := m.Transfer(t.Context(), "n2"); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}

// A node that joins must answer at its address under its own id, and know the log version in force.
// A node that lost its disk has a new id: it replaces its predecessor (the member with its name),
// if that is unreachable.
func TestJoiningMemberMustAnswerUnderItsID(t *testing.T) {
	for name, test := range map[string]struct {
		there   *peer.Status // what answers at the address
		request JoinRequest
		away    bool // its predecessor is unreachable
		termErr error
		want    []string
	}{
		"a new node": {
			there:   &peer.Status{ID: "n4.1"},
			request: JoinRequest{ID: "n4.1", Address: "n4", Version: fsm.Version},
			want:    []string{"add non-voter n4.1"},
		},
		"nobody there": {request: JoinRequest{
			ID: "n4.1", Address: "n4",
			Version: fsm.Version,
		}},
		"another is there": {
			there:   &peer.Status{ID: "n5.1"},
			request: JoinRequest{ID: "n4.1", Address: "n4", Version: fsm.Version},
		},
		"log version too old": {
			there:   &peer.Status{ID: "n4.1"},
			request: JoinRequest{ID: "n4.1", Address: "n4", Version: fsm.Version - 1},
		},
		"has the state of another cluster": {
			there:   &peer.Status{ID: "n4.1", HasState: true},
			request: JoinRequest{ID: "n4.1", Address: "n4", Version: fsm.Version},
		},
		"a member again": {
			there:   &peer.Status{ID: "n2.1", HasState: true},
			request: JoinRequest{ID: "n2.1", Address: "n2", Version: fsm.Version},
		},
		"a member that moved": {
			there:   &peer.Status{ID: "n2.1", HasState: true},
			request: JoinRequest{ID: "n2.1", Address: "moved", Version: fsm.Version},
			want:    []string{"add voter n2.1"},
		},
		"without its disk": {
			there:   &peer.Status{ID: "n2.2"},
			request: JoinRequest{ID: "n2.2", Address: "other", Version: fsm.Version},
			away:    true, want: []string{"remove n2.1", "add non-voter n2.2"},
		},
		"a member that moved to where a dead one was": {
			there:   &peer.Status{ID: "n2.1", HasState: true},
			request: JoinRequest{ID: "n2.1", Address: "n3", Version: fsm.Version},
			want:    []string{"remove n3.1", "add voter n2.1"},
		},
		"beside one of its name": {
			there:   &peer.Status{ID: "n2.2"},
			request: JoinRequest{ID: "n2.2", Address: "other", Version: fsm.Version},
		},
		"beside one of its name that answers with an error": {
			there:   &peer.Status{ID: "n2.2"},
			request: JoinRequest{ID: "n2.2", Address: "other", Version: fsm.Version},
			termErr: peer.ErrNotDone,
		},
		"beside one of its name that refuses the leader's connection": {
			there:   &peer.Status{ID: "n2.2"},
			request: JoinRequest{ID: "n2.2", Address: "other", Version: fsm.Version},
			termErr: errors.Join(peer.ErrRejected, peer.ErrUnreachable),
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := newFake(t)
			f.termErr = test.termErr
			if test.there != nil {
				f.statuses[test.request.Address] = *test.there
			}
			if test.away {
				delete(f.statuses, "n2")
			}
			var changes []string
			f.change = func(what string,
				id raft.ServerID,
			) error {
				changes = append(changes, what+" "+
					string(id))
				return nil
			}
			body, err := json.Marshal(test.request)
			if err != nil {
				t.Fatal(err)
			}
			err = m.HandleJoin(t.Context(),
				peer.Caller{Certified: func(...string) bool { return true }}, body)
			if (len(test.want) > 0 || name == "a member again") != (err == nil) {
				t.Errorf("error %v", err)
			}
			if len(changes) != len(test.want) {
				t.Fatalf("changes %q, want %q", changes, test.want)
			}
			for i := range changes {
				if changes[i] != test.want[i] {
					t.Errorf("changes %q, want %q", changes, test.want)
				}
			}
			if err := m.HandleJoin(t.Context(),
				peer.Caller{Certified: func(...string) bool { return false }},
				body); !errors.Is(err, peer.ErrRefused) {
				t.Errorf("with a certificate of another node: %v", err)
			}
		})
	}
}

// A follower forwards the question whether an id is a member, but not if it was forwarded already.
// While a membership change is not committed, the leader answers true for every id.
func TestOnlyTheLeaderAnswersIsMember(t *testing.T) {
	for name, test := range map[string]struct {
		serving    bool
		configured uint64
		caller     raft.ServerID
		id         raft.ServerID
		answer     string
		err        error
	}{
		"a member":                        {true, 5, "n2.1", "n3.1", "true", nil},
		"one that was removed":            {true, 5, "", "n4.1", "false", nil},
		"while a change is not committed": {true, 11, "", "n4.1", "true", nil},
		"asked of a follower":             {false, 5, "", "n4.1", "passed on", nil},
		"passed on to a follower":         {false, 5, "n2.1", "n4.1", "", peer.ErrNotLeader},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := newFake(t)
			f.serving, f.configured = test.serving, test.configured
			answer, err := m.HandleIsMember(t.Context(), peer.Caller{ID: test.caller}, test.id)
			if string(answer) != test.answer || !errors.Is(err, test.err) {
				t.Errorf("%q, %v", answer, err)
			}
		})
	}
}

// A node that knows no members yet lists none: the list is empty, and not null in JSON.
func TestListWithoutMembersIsEmpty(t *testing.T) {
	f, m := newFake(t)
	f.members = nil
	if list := m.ListAsKnown(t.Context()); list == nil || len(list) != 0 {
		t.Errorf("%#v", list)
	}
}

// TrailsLeaderBy counts from the end of the leader's log before the poll. The log grows during the
// poll, which lasts as long as its slowest member.
func TestMembersTrailTheLogThatTheLeaderHadBeforeThePoll(t *testing.T) {
	f, m := newFake(t)
	own := peer.Status{ID: "n1.1", State: "leader", LastIndex: 10}
	m.env.OwnStatus = func() peer.Status {
		own.LastIndex += 5
		return own
	}
	own.LastIndex -= 5 // so that the first call of OwnStatus returns 10
	n2, n3 := f.statuses["n2"], f.statuses["n3"]
	n2.LastIndex, n3.LastIndex = 12, 7 // n2 has already more than the leader had
	f.statuses["n2"], f.statuses["n3"] = n2, n3
	for _, member := range m.ListAsKnown(t.Context()) {
		if want := map[string]uint64{
			"n1": 0, "n2": 0,
			"n3": 3,
		}[member.Node]; member.TrailsLeaderBy != want {
			t.Errorf("%s trails by %d, want %d", member.Node, member.TrailsLeaderBy, want)
		}
	}
}

// A removal that waited for a join does not remove the node that has joined under the same name.
func TestQueuedRemovalSparesTheReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m := newFake(t)
		delete(f.statuses, "n3") // n3.1 is lost
		if err := m.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		removed := make(chan error, 1)
		go func() { removed <- m.Remove(t.Context(), "n3") }()
		synctest.Wait()
		f.members[2].ID, f.members[2].Suffrage = "n3.2", raft.Nonvoter
		f.statuses["n3"] = peer.Status{
			ID: "n3.2", Address: "n3", LastIndex: f.last,
			Version: fsm.Version,
		}
		m.Unlock()
		if err := <-removed; !errors.Is(err, peer.ErrRefused) {
			t.Errorf("%v", err)
		}
	})
}

// A node that does not lead says so before it judges by the members that it knows.
func TestAddOnAFollowerSaysThatItDoesNotLead(t *testing.T) {
	_, m := newFake(t)
	m.env.Confirm = func(context.Context) error { return peer.ErrNotLeader }
	if err := m.Add(t.Context(), "n2", false); !errors.Is(err, peer.ErrNotLeader) { // n2 is a voter
		t.Errorf("%v", err)
	}
}

// Raft takes no membership change while an earlier one is not committed. The context's deadline
// bounds the wait for raft, and the lock of the membership is held meanwhile. If the context ends
// during the poll of the voters, the change is not done, and not refused.
func TestDeadlineBoundsTheWaitForRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m := newFake(t)
		m.env.Raft = busyRaft{f}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- m.Remove(ctx, "n3") }()
		synctest.Wait()
		if m.TryLock() {
			t.Error("another change may begin while raft has not taken the first")
			m.Unlock()
		}
		if err := <-done; !errors.Is(err, peer.ErrNotDone) || time.Since(began) > 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := m.Remove(ctx, "n3"); !errors.Is(err, peer.ErrNotDone) ||
			errors.Is(err, peer.ErrRefused) {
			t.Errorf("after the context's end: %v", err)
		}
	})
}

// busyRaft takes no change.
type busyRaft struct{ *fake }

func (busyRaft) RemoveServer(_ raft.ServerID, _ uint64, timeout time.Duration) raft.IndexFuture {
	time.Sleep(timeout)
	return future{run: func() error { return raft.ErrEnqueueTimeout }}
}
