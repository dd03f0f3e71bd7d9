package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// statusClient answers with the status that is kept for an address.
type statusClient map[raft.ServerAddress]Status

func (c statusClient) Call(_ context.Context, member raft.Server, method Method, _ []byte) ([]byte,
	error,
) {
	status, ok := c[member.Address]
	if !ok || method != MethodPeerStatus {
		return nil, ErrUnreachable
	}
	return json.Marshal(status)
}

// members returns n1, n2 and n3, whose addresses are their ids.
func members() []raft.Server {
	return []raft.Server{
		{ID: "n1", Address: "n1"},
		{ID: "n2", Address: "n2"},
		{ID: "n3", Address: "n3"},
	}
}

// newStatuses returns the statuses that n1 keeps. The monotonic clock of n1 stands at 4 s, so a
// ClockBase is the Wall of a status minus 4,000 ms.
func newStatuses(client Client) *Statuses {
	return NewStatuses("n1", client, members, func() time.Duration { return 4 * time.Second })
}

func TestPollKeepsOnlyAnswersOfTheMemberThatWasAsked(t *testing.T) {
	s := newStatuses(statusClient{
		"n1": {ID: "n1"}, "n2": {ID: "n2", Wall: 10_000},
		"n3": {ID: "another"},
	})
	answered := s.Poll(t.Context(), time.Minute)
	if len(answered) != 1 || answered["n2"].ClockBase != 6_000 {
		t.Errorf("answered: %+v", answered)
	}
}

func TestKeepReturnsThePollBefore(t *testing.T) {
	s := newStatuses(nil)
	if _, first := s.Keep(map[raft.ServerID]Answer{"n2": {Status: Status{DiskLow: true}}}); !first || s.Answering() != 2 {
		t.Errorf("after the first poll: first %v, %d answer", first, s.Answering())
	}
	if space := s.DiskSpace(false); len(space.Low) != 1 || space.Low[0] != "n2" ||
		space.OtherVoters != 0 {
		t.Errorf("after the first poll: %+v", space)
	}
	if before, first := s.Keep(nil); first || len(before) != 1 || s.Answering() != 1 {
		t.Errorf("after the second poll: first %v, before %v, %d answer", first, before,
			s.Answering())
	}
}

// A member is missing since the first poll that it did not answer.
func TestMissingSinceTheFirstPollWithoutAnswer(t *testing.T) {
	now := time.Duration(0)
	s := NewStatuses("n1", nil, members, func() time.Duration { return now })
	if s.Keep(nil); len(s.Missing()) != 2 {
		t.Fatalf("%v", s.Missing())
	}
	now = 10 * time.Second
	s.Keep(map[raft.ServerID]Answer{"n2": {}})
	now = 15 * time.Second
	if missing := s.Missing(); len(missing) != 1 || missing[0].ID != "n3" ||
		missing[0].For != 15*time.Second {
		t.Errorf("%+v", missing)
	}
	now = 20 * time.Second
	s.Keep(map[raft.ServerID]Answer{"n3": {}})
	if missing := s.Missing(); len(missing) != 1 || missing[0].ID != "n2" ||
		missing[0].For != 0 {
		t.Errorf("%+v", missing)
	}
}

// A member is behind until it has applied what the leader had applied at the comparison before. A
// member that has led is compared with its own last applied index, and a comparison that is too old
// does not count.
func TestMemberIsBehindUntilItReachesTheLeadersIndex(t *testing.T) {
	const leads = "this member leads for a minute"
	const pause = "after an hour without a comparison, as much as the leader had before"
	var now time.Duration
	s := NewStatuses("n1", nil, members, func() time.Duration { return now })
	steps := []struct {
		name string
		// applied indexes of the leader (0: it does not answer) and of this member
		leader, applied uint64
		behind          bool
	}{
		{"no leader yet", 0, 50, true},
		{"the first comparison, less applied", 100, 50, true},
		{"less than the leader had", 120, 99, true},
		{"as much as the leader had", 200, 120, false},
		{"the leader is away", 0, 130, false},
		{"less again", 300, 199, true},
		{"as much again", 400, 300, false},
		{leads, 0, 500, false},
		{leads, 0, 900, false},
		{"a little less than its successor", 901, 900, false},
		{pause, 9000, 950, true},
	}
	if !s.IsBehind() {
		t.Error("a member that was never compared is not behind")
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			leader := raft.ServerID("n2")
			switch now += PollInterval; step.name {
			case pause:
				now += time.Hour
			case leads:
				now, leader = now+time.Minute, "n1"
			}
			answered := make(map[raft.ServerID]Answer)
			if step.leader != 0 {
				answered["n2"] = Answer{Status: Status{Applied: step.leader}}
			}
			s.Keep(answered)
			s.CompareWithLeader(leader, step.applied)
			if s.IsBehind() != step.behind {
				t.Errorf("behind is %v", s.IsBehind())
			}
		})
	}
}

func TestAgreedVersionIsWhatEveryMemberCanApply(t *testing.T) {
	for name, test := range map[string]struct {
		answers            map[raft.ServerID]uint32
		own, inForce, want uint32
	}{
		"all know the newest":       {map[raft.ServerID]uint32{"n2": 5, "n3": 5}, 5, 4, 5},
		"one knows an older":        {map[raft.ServerID]uint32{"n2": 5, "n3": 4}, 5, 3, 4},
		"one does not answer":       {map[raft.ServerID]uint32{"n2": 5}, 5, 3, 3},
		"nothing in force yet":      {nil, 5, 0, 1},
		"never back from the force": {map[raft.ServerID]uint32{"n2": 2, "n3": 2}, 5, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStatuses(nil)
			answered := make(map[raft.ServerID]Answer)
			for id, version := range test.answers {
				answered[id] = Answer{Status: Status{Version: version}}
			}
			s.Keep(answered)
			if got := s.AgreedVersion(test.own, test.inForce); got != test.want {
				t.Errorf("%d, not %d", got, test.want)
			}
		})
	}
}

func TestErrorsKeepTheirKindOnTheWay(t *testing.T) {
	for _, kind := range []error{
		ErrNotLeader, ErrNotDone, ErrOutcomeUnknown, ErrRefused,
		ErrUnreachable,
	} {
		t.Run(kind.Error(), func(t *testing.T) {
			sent := fmt.Errorf("while changing: %w", kind)
			got := DecodeError(EncodeError(sent))
			if !errors.Is(got, kind) || got.Error() != sent.Error() {
				t.Errorf("%v arrives as %v", sent, got)
			}
		})
	}
	if got := DecodeError([]byte("{")); got == nil || errors.Is(got, ErrNotDone) {
		t.Errorf("an unreadable error is %v", got)
	}
}

// The name of a node is the part of its raft id before the last dot. Names with numbers at the end
// are ordered by the numbers.
func TestNodeNamesAreOrderedByTheirNumbers(t *testing.T) {
	for id, want := range map[raft.ServerID]string{"n1.0f": "n1", "a.b.0f": "a.b", "n1": "n1"} {
		t.Run(string(id), func(t *testing.T) {
			if got := NodeName(id); got != want {
				t.Errorf("NodeName(%q) is %q", id, got)
			}
		})
	}
	for address, want := range map[raft.ServerAddress]string{
		"host:1": "host", "[::1]:1": "::1",
		"host": "host",
	} {
		t.Run(string(address), func(t *testing.T) {
			if got := HostOf(address); got != want {
				t.Errorf("HostOf(%q) is %q", address, got)
			}
		})
	}
	if CompareNames("n2", "n10") >= 0 || CompareNames("n2", "n2") != 0 ||
		CompareNames("n3", "n2") <= 0 {
		t.Error("names are not in the order of their numbers")
	}
}
