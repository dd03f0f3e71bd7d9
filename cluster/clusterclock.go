package cluster

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// clusterClock is the clock by which a leader stamps entries: the lower median of the wall clocks of all members, advanced by this node's monotonic
// clock. With three members or more one wrong clock cannot move it beyond the others, and neither can a clock that is stepped. It is safe for concurrent use.
//
// A clock is kept as its base: what it showed at this node's monotonic time 0, in milliseconds since the Unix epoch.
type clusterClock struct {
	own Clock

	mu         sync.Mutex
	bases      map[raft.ServerID]int64 // the last known one of each other member
	logBase    int64                   // of the cluster, as the log has it
	hasLogBase bool
	base       int64 // of the cluster
	hasBase    bool
	offset     time.Duration // by which this node's wall clock is ahead of the cluster's
}

func newClusterClock(own Clock) *clusterClock {
	return &clusterClock{own: own, bases: make(map[raft.ServerID]int64)}
}

// now returns the cluster clock in milliseconds since the Unix epoch. It is 0, which moves nothing, until a majority of the voters was heard.
func (c *clusterClock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasBase {
		return 0
	}
	return c.base + c.own.Monotonic().Milliseconds()
}

// ahead returns by how much this node's wall clock is ahead of the cluster's.
func (c *clusterClock) ahead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset
}

// update sets the clock from the answers to a poll, if a majority of the voters answered. self is this member, and counts as having answered. For a member
// that did not answer, its last known clock counts: otherwise one wrong clock would decide when few members answer.
func (c *clusterClock) update(answers map[raft.ServerID]peer.Answer, servers []raft.Server, self raft.ServerID) {
	own := c.own.Wall() - c.own.Monotonic().Milliseconds()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range answers {
		c.bases[id] = answers[id].ClockBase
	}
	bases, voters, answered := []int64{own}, 0, 0
	for _, server := range servers {
		_, inTime := answers[server.ID]
		if server.Suffrage == raft.Voter {
			if voters++; inTime || server.ID == self {
				answered++
			}
		}
		if base, known := c.bases[server.ID]; known && server.ID != self {
			bases = append(bases, base)
		}
	}
	if answered <= voters/2 {
		return
	}
	maps.DeleteFunc(c.bases, func(id raft.ServerID, _ int64) bool {
		_, member := peer.Find(servers, id)
		return !member
	})
	if c.hasLogBase {
		bases = withLogBase(bases, c.logBase)
	}
	c.base, c.hasBase = lowerMedian(bases), true
	c.offset = time.Duration(own-c.base) * time.Millisecond
}

// withLogBase adds the clock that the log carries if the members' own clocks could be two halves that disagree.
func withLogBase(bases []int64, base int64) []int64 {
	if len(bases)%2 == 0 {
		return append(bases, base)
	}
	return bases
}

// lowerMedian returns the middle of the values, the lower one of two. There is at least one.
func lowerMedian(values []int64) int64 {
	values = slices.Sorted(slices.Values(values))
	return values[(len(values)-1)/2]
}

// observeLogWall records the state's wall clock after an applied entry or a restored snapshot has set it, in milliseconds since the Unix epoch. It does not
// change the cluster clock: update uses the record. The entry is older than the call, so the highest base is the best estimate.
func (c *clusterClock) observeLogWall(wall int64) {
	base := wall - c.own.Monotonic().Milliseconds()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasLogBase || base > c.logBase {
		c.logBase, c.hasLogBase = base, true
	}
}
