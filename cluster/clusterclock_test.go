package cluster

import (
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// clockOf returns the cluster clock of a node at monotonic time 0. True time is 0, too, and the node's wall clock is ahead of it by an offset.
func clockOf(offset int64) *clusterClock {
	return newClusterClock(Clock{Wall: func() int64 { return offset }, Monotonic: func() time.Duration { return 0 }})
}

// The cluster clock is the lower median of the members' wall clocks. If their number is even, the clock in the log counts as one more. It is not set before
// a majority of the voters has answered.
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

// For a member that no longer answers, its last known clock counts, until the member is removed.
func TestClusterClockRemembersMembers(t *testing.T) {
	const hour = 3_600_000
	servers := []raft.Server{{ID: "self"}, {ID: "a"}, {ID: "b"}}
	c := clockOf(0)
	c.update(map[raft.ServerID]peer.Answer{"a": {ClockBase: 10}, "b": {ClockBase: 20}}, servers, "self")
	c.update(map[raft.ServerID]peer.Answer{"b": {ClockBase: hour}}, servers, "self")
	if got := c.now(); got != 10 {
		t.Errorf("%d: one wrong clock decides", got)
	}
	c.update(map[raft.ServerID]peer.Answer{"b": {ClockBase: 30}}, []raft.Server{{ID: "self"}, {ID: "b"}}, "self")
	if len(c.bases) != 1 {
		t.Errorf("%d clocks are known of one other member", len(c.bases))
	}
}

// A leader that a configuration makes a non-voter, or removes, does not count towards the majority.
func TestClusterClockCountsOnlyVoters(t *testing.T) {
	servers := []raft.Server{{ID: "self", Suffrage: raft.Nonvoter}, {ID: "a", Suffrage: raft.Voter}, {ID: "b", Suffrage: raft.Voter}}
	c := clockOf(0)
	c.update(map[raft.ServerID]peer.Answer{"a": {ClockBase: 10}}, servers, "self")
	if c.hasBase {
		t.Error("one of two voters set the clock")
	}
}
