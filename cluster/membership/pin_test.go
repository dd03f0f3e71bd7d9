package membership

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// A pin keeps autopilot from promoting a non-voter. A demotion that is not done removes its pin. If
// such a pin stays on a voter, a node that replaces the voter does not inherit it: otherwise that
// node would never vote.
func TestFailedDemotionPinsNoReplacement(t *testing.T) {
	f, m := newFake(t)
	f.change = func(string, raft.ServerID) error { return raft.ErrNotLeader }
	if err := m.Demote(t.Context(), "n2"); !errors.Is(err, peer.ErrNotDone) {
		t.Fatal(err)
	}
	if last := f.executed[len(f.executed)-1]; last.Kind != fsm.KindAllowPromotion ||
		string(last.Key) != "n2.1" {
		t.Errorf("%+v", last)
	}
	f.pinned["n2.1"] = true // the leadership was lost before the pin could be taken back
	f.executed = nil
	f.statuses["n2"] = peer.Status{ID: "n2.2", Address: "n2"}
	f.change = func(what string, _ raft.ServerID) error {
		if what == "remove" {
			f.members = []raft.Server{f.members[0], f.members[2]}
		}
		return nil
	}
	body, err := json.Marshal(JoinRequest{ID: "n2.2", Address: "n2", Version: fsm.Version})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.HandleJoin(t.Context(),
		peer.Caller{Certified: func(...string) bool { return true }}, body); err != nil {
		t.Fatal(err)
	}
	for _, command := range f.executed {
		if command.Kind == fsm.KindPinNonVoter {
			t.Errorf("%s is pinned", command.Key)
		}
	}
}

// † The replacement is pinned before the pinned member is removed, so a join that ends in between
// keeps the operator's pin.
func TestPinPassesToTheSuccessorFirst(t *testing.T) {
	f, m := newFake(t)
	f.pinned["n2.1"] = true
	f.members[1].Suffrage = raft.Nonvoter
	f.statuses["other"] = peer.Status{ID: "n2.2"}
	delete(f.statuses, "n2")
	f.change = func(string, raft.ServerID) error { return errors.New("the leadership was lost") }
	body, err := json.Marshal(JoinRequest{ID: "n2.2", Address: "other", Version: fsm.Version})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.HandleJoin(t.Context(),
		peer.Caller{Certified: func(...string) bool { return true }}, body); err == nil {
		t.Error("it joined")
	}
	if len(f.executed) == 0 || f.executed[0].Kind != fsm.KindPinNonVoter ||
		string(f.executed[0].Key) != "n2.2" {
		t.Errorf("executed %+v", f.executed)
	}
}

// A pin stays while raft may still make the change for which it was set (an addition as a
// non-voter, or a demotion). A pin that was set before a failed change stays, too.
func TestPinStaysWhileItMayBeNeeded(t *testing.T) {
	for name, test := range map[string]struct {
		failed error // raft's error for the change
		pinned bool  // pinned before the change
		undone bool  // the pin is removed
		change func(*Membership, context.Context) error
	}{
		"added, outcome unknown":     {raft.ErrLeadershipLost, false, false, addNonVoter},
		"added, not done":            {raft.ErrNotLeader, false, true, addNonVoter},
		"added again, not done":      {raft.ErrNotLeader, true, false, addNonVoter},
		"demoted, outcome unknown":   {raft.ErrLeadershipLost, false, false, demoteN3},
		"demoted, not done":          {raft.ErrNotLeader, false, true, demoteN3},
		"demoted again, not done":    {raft.ErrNotLeader, true, false, demoteN3},
		"demoted, rejected by raft":  {errors.New("duplicate address"), false, false, demoteN3},
		"added again, never refused": {nil, true, false, addNonVoter},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := newFake(t)
			f.statuses["n4"] = peer.Status{ID: "n4.1", Address: "n4", Version: fsm.Version}
			f.pinned["n4.1"], f.pinned["n3.1"] = test.pinned, test.pinned
			f.change = func(string, raft.ServerID) error { return test.failed }
			if err := test.change(m, t.Context()); (err == nil) != (test.failed == nil) {
				t.Fatal(err)
			}
			undone := slices.ContainsFunc(f.executed,
				func(c fsm.Command) bool { return c.Kind == fsm.KindAllowPromotion })
			if undone != test.undone {
				t.Errorf("the pin was removed: %v, want %v", undone, test.undone)
			}
		})
	}
}

func addNonVoter(m *Membership, ctx context.Context) error { return m.Add(ctx, "n4", false) }
func demoteN3(m *Membership, ctx context.Context) error    { return m.Demote(ctx, "n3") }

// If the outcome of pinning a voter is unknown, its demotion is not requested, and so it is not
// done. For a non-voter the pin is all that a demotion changes, so the outcome of the demotion is
// unknown, too.
func TestUnknownPinIsNotDoneOnlyForAVoter(t *testing.T) {
	for suffrage, want := range map[raft.ServerSuffrage]error{
		raft.Voter:    peer.ErrNotDone,
		raft.Nonvoter: peer.ErrOutcomeUnknown,
	} {
		t.Run(suffrage.String(), func(t *testing.T) {
			f, m := newFake(t) // a change that is given to raft fails the test
			f.members[2].Suffrage = suffrage
			m.env.Execute = func(context.Context, fsm.Command) (fsm.Result,
				error,
			) {
				return fsm.Result{}, peer.ErrOutcomeUnknown
			}
			if err := m.Demote(t.Context(), "n3"); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		})
	}
}

// The pin that a node inherits stays when its addition fails after the predecessor was removed:
// that pin exists nowhere else.
func TestInheritedPinOutlivesAFailedAddition(t *testing.T) {
	f, m := newFake(t)
	f.members[2].Suffrage, f.pinned["n3.1"] = raft.Nonvoter, true
	f.statuses["n3"] = peer.Status{ID: "n3.2", Address: "n3", Version: fsm.Version}
	f.change = func(what string, _ raft.ServerID) error {
		if what == "remove" {
			f.members = f.members[:2]
			return nil
		}
		return raft.ErrEnqueueTimeout
	}
	if err := m.Add(t.Context(), "n3", false); !errors.Is(err, peer.ErrNotDone) {
		t.Fatal(err)
	}
	for _, command := range f.executed {
		if command.Kind == fsm.KindAllowPromotion && string(command.Key) == "n3.2" {
			t.Error("the pin of the new id was removed")
		}
	}
}
