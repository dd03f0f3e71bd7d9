package cluster

import (
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/internal/testwait"
)

// † Members that are short of disk space stop the others only where the others are no majority, as
// if they were dead.
func TestMinorityWithoutDiskSpaceStopsNobody(t *testing.T) {
	full, fine := peer.Answer{Status: peer.Status{DiskLow: true}}, peer.Answer{}
	answers := func(list ...any) map[raft.ServerID]peer.Answer {
		answered := map[raft.ServerID]peer.Answer{}
		for i := 0; i < len(list); i += 2 {
			answered[raft.ServerID(list[i].(string))] = list[i+1].(peer.Answer)
		}
		return answered
	}
	for name, test := range map[string]struct {
		size    int
		own     bool
		answers map[raft.ServerID]peer.Answer
		low     bool
		members []raft.ServerID
	}{
		"all have space": {
			3, false, answers("n2", fine, "n3", fine), false,
			nil,
		},
		"nobody answers": {3, false, nil, false, nil},
		"one of three": {
			3, false, answers("n2", full, "n3", fine), false,
			[]raft.ServerID{"n2"},
		},
		"the leader of three": {
			3, true, answers("n2", fine, "n3", fine), false,
			[]raft.ServerID{"n1"},
		},
		"two of three": {
			3, false, answers("n2", full, "n3", full), true,
			[]raft.ServerID{"n2", "n3"},
		},
		"one of three, and another is dead": {
			3, false, answers("n2", full), true,
			[]raft.ServerID{"n2"},
		},
		"one alone": {1, true, nil, true, []raft.ServerID{"n1"}},
		"one of two": {
			2, false, answers("n2", full), true,
			[]raft.ServerID{"n2"},
		},
		"two of five": {
			5, false,
			answers("n2", full, "n3", full, "n4", fine, "n5", fine), false,
			[]raft.ServerID{"n2", "n3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			list := servers([]raft.ServerID{"n1", "n2", "n3", "n4", "n5"}[:test.size]...)
			known := func() []raft.Server { return list }
			peers := peer.NewStatuses("n1", nil, known, SystemClock().Monotonic)
			peers.Keep(test.answers)
			if got := peers.DiskSpace(test.own); got.Refused != test.low ||
				!slices.Equal(got.Low, test.members) {
				t.Errorf("refused: %t, members %v", got.Refused, got.Low)
			}
		})
	}
}

// A leader that is short of disk space hands over to a member that is not: it would end with a full
// disk.
func TestLeaderWithoutDiskSpaceHandsOver(t *testing.T) {
	var full fakeSwitch
	members := startCluster(t, 3, func(c *Config, e *Environment) {
		id := c.ID
		e.FreeSpace = func() (uint64, bool) { return 1, full.is(id) }
	})
	old := leader(t, members...)
	full.set(old.ID())
	testwait.Until(t, "another one leads", func() bool {
		return slices.ContainsFunc(members,
			func(m *member) bool { return m != old && m.leadsForTest() })
	})
	next := leader(t, slices.DeleteFunc(slices.Clone(members),
		func(m *member) bool { return m == old })...)
	next.must(t, set("k", "v"))
	testwait.Until(t, "it says who is short of space",
		func() bool { return slices.Equal(next.Status().DiskLow, []raft.ServerID{old.ID()}) })
	if next.Status().StorageLow {
		t.Error("what grows is refused because of one member of three")
	}
}
