package cluster

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// clockOf returns the cluster clock of a node at monotonic time 0. True time is 0, too, and the
// node's wall clock is ahead of it by an offset.
func clockOf(offset int64) *clusterClock {
	return newClusterClock(Clock{
		Wall:      func() int64 { return offset },
		Monotonic: func() time.Duration { return 0 },
	})
}

// The cluster clock is the lower median of the members' wall clocks. If their number is even, the
// clock in the log counts as one more. It is not set before a majority of the voters has answered.
func TestClusterClockFollowsTheMedian(t *testing.T) {
	const hour = 3_600_000
	for name, test := range map[string]struct {
		own     int64
		others  []int64 // by how much the clocks of the other members are ahead
		voters  int     // so many of the others vote, the first ones; this node votes, too
		silent  int     // so many of the last ones do not answer
		carried int64   // the cluster clock in the log; 0 if the log has none
		want    int64
		known   bool
	}{
		"all agree":                          {0, []int64{0, 0}, 2, 0, 0, 0, true},
		"the own clock is wrong":             {hour, []int64{1, 2}, 2, 0, 0, 2, true},
		"one other clock is wrong":           {1, []int64{-hour, 2}, 2, 0, 0, 1, true},
		"no majority of the voters answers":  {1, []int64{2, 3}, 2, 2, 0, 0, false},
		"non-voters count":                   {hour, []int64{1, 2}, 0, 0, 0, 2, true},
		"two halves disagree":                {hour, []int64{0}, 1, 0, 7, 7, true},
		"two halves disagree, nothing known": {hour, []int64{1}, 1, 0, 0, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := clockOf(test.own)
			servers := []raft.Server{{ID: "self", Suffrage: raft.Voter}}
			answers := make(map[raft.ServerID]peer.Answer)
			for i, ahead := range test.others {
				server := raft.Server{ID: raft.ServerID(strconv.Itoa(i)), Suffrage: raft.Nonvoter}
				if i < test.voters {
					server.Suffrage = raft.Voter
				}
				servers = append(servers, server)
				if i < len(test.others)-test.silent {
					answers[server.ID] = peer.Answer{ClockBase: ahead}
				}
			}
			if test.carried != 0 {
				c.observeLogWall(test.carried)
			}
			c.update(answers, servers, "self")
			want, ahead := test.want, time.Duration(test.own-test.want)*time.Millisecond
			if !test.known {
				ahead = 0
			}
			if got := c.now(); got != want || c.ahead() != ahead {
				t.Errorf("%d, this node %v ahead; want %d, %v", got, c.ahead(), want, ahead)
			}
		})
	}
}

// For a member that no longer answers, its last known clock counts, so that one wrong clock does
// not decide. A member that was removed does not count.
func TestClusterClockRemembersMembers(t *testing.T) {
	const hour = 3_600_000
	servers := serversOf("self", "a", "b")
	for name, wrong := range map[string]int64{"ahead": hour, "behind": -hour} {
		t.Run("one clock is "+name, func(t *testing.T) {
			c := clockOf(15)
			c.update(map[raft.ServerID]peer.Answer{"a": {ClockBase: 10}, "b": {ClockBase: 20}},
				servers, "self")
			c.update(map[raft.ServerID]peer.Answer{"b": {ClockBase: wrong}}, servers, "self")
			if got := c.now(); got != 10 && got != 15 {
				t.Errorf("the cluster clock is %d", got)
			}
		})
	}
	t.Run("a member is removed", func(t *testing.T) {
		c := clockOf(0)
		c.update(map[raft.ServerID]peer.Answer{"a": {ClockBase: hour}, "b": {ClockBase: 20}},
			servers, "self")
		c.update(map[raft.ServerID]peer.Answer{"b": {ClockBase: 30}}, serversOf("self", "b"),
			"self")
		// the id is added again, and does not answer
		c.update(map[raft.ServerID]peer.Answer{"b": {ClockBase: 30}}, servers, "self")
		if got := c.now(); got != 0 {
			t.Errorf("the cluster clock is %d", got)
		}
	})
}

// With two clocks, the cluster clock in the log counts as a third one. So the result is never the
// wrong one of the two.
func TestLogDecidesBetweenTwoClocks(t *testing.T) {
	const right, carried = 100_000, 99_000
	for name, wrong := range map[string]int64{"one is behind": 20_000, "one is ahead": 180_000} {
		t.Run(name, func(t *testing.T) {
			for _, bases := range [][]int64{{right, wrong}, {wrong, right}} {
				if got := lowerMedian(withLogBase(bases, carried)); got != right && got != carried {
					t.Errorf("of %v and the log's %d: %d", bases, carried, got)
				}
			}
		})
	}
	if got := lowerMedian(withLogBase([]int64{1, 2, 3}, 3)); got != 2 {
		t.Errorf("of three clocks: %d", got)
	}
}

// † A leader's wall clock that is set while it polls the others does not move the cluster clock.
func TestClockThatIsSetDuringAPollMovesNothing(t *testing.T) {
	const hour = 3_600_000
	wall := int64(100_000)
	own := Clock{
		Wall:      func() int64 { return wall },
		Monotonic: func() time.Duration { return time.Second },
	}
	servers := serversOf("self", "a", "b")
	client := peerFunc(func(_ context.Context, member raft.Server, _ peer.Method, _ []byte) ([]byte,
		error,
	) {
		return json.Marshal(peer.Status{ID: member.ID, Wall: 100_000})
	})
	c := newClusterClock(own)
	answered := peer.NewStatuses("self", client, func() []raft.Server { return servers },
		own.Monotonic).Poll(t.Context(), time.Minute)
	wall += hour
	c.update(answered, servers, "self")
	if got := c.now(); len(answered) != 2 || got != 100_000 {
		t.Errorf("the cluster clock is %d", got)
	}
}

// A leader that a configuration makes a non-voter, or removes, does not count towards the majority.
func TestClusterClockCountsOnlyVoters(t *testing.T) {
	servers := []raft.Server{
		{ID: "self", Suffrage: raft.Nonvoter},
		{ID: "a", Suffrage: raft.Voter},
		{ID: "b", Suffrage: raft.Voter},
	}
	c := clockOf(0)
	c.update(map[raft.ServerID]peer.Answer{"a": {ClockBase: 10}}, servers, "self")
	if c.now() != 0 {
		t.Error("one of two voters set the clock")
	}
}

// The answers of non-voters are no majority of the voters.
func TestNonVotersSetNoClusterClock(t *testing.T) {
	c := clockOf(15)
	servers := append(serversOf("self", "a", "b"), raft.Server{ID: "x", Suffrage: raft.Nonvoter},
		raft.Server{ID: "y", Suffrage: raft.Nonvoter})
	c.update(map[raft.ServerID]peer.Answer{
		"x": {ClockBase: 3_600_000},
		"y": {ClockBase: 3_600_000},
	}, servers, "self")
	if got := c.now(); got != 0 {
		t.Errorf("the cluster clock is %d, and no other voter answered", got)
	}
}
