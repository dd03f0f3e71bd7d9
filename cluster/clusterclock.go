package cluster

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// clusterClock is the clock by which a leader stamps entries: the lower median of the wall clocks
// of all members, advanced by this node's monotonic clock. With three members or more, one clock
// that is wrong or is stepped cannot move the median beyond the other clocks. It is safe for
// concurrent use.
//
// A clock is kept as its base: what it showed at this node's monotonic time 0, in milliseconds
// since the Unix epoch.
type clusterClock struct {
	own Clock

	mu         sync.Mutex
	bases      map[raft.ServerID]int64 // the last known base of each other member's wall clock
	logBase    int64                   // base of the cluster clock as the log has it
	hasLogBase bool
	base       int64 // base of the cluster clock
	hasBase    bool
	offset     time.Duration // this node's wall clock minus the cluster clock
}

func newClusterClock(own Clock) *clusterClock {
	return &clusterClock{own: own, bases: make(map[raft.ServerID]int64)}
}

// now returns the cluster clock in milliseconds since the Unix epoch. It is 0 until a majority of
// the voters has answered a poll. An entry stamped with 0 does not move the state's clock.
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

// update sets the clock from the answers to a poll, if a majority of the voters answered. self is
// this member, and counts as having answered. For a member that did not answer, its last known
// clock counts: otherwise one wrong clock would decide when few members answer.
func (c *clusterClock) update(answers map[raft.ServerID]peer.Answer, servers []raft.Server,
	self raft.ServerID,
) {
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

// withLogBase adds the base of the clock in the log if the number of bases is even: then the
// members' clocks could be two halves that disagree.
func withLogBase(bases []int64, base int64) []int64 {
	if len(bases)%2 == 0 {
		return append(bases, base)
	}
	return bases
}

// lowerMedian returns the median of the values: the lower one if there are two middle values. There
// must be at least one value.
func lowerMedian(values []int64) int64 {
	values = slices.Sorted(slices.Values(values))
	return values[(len(values)-1)/2]
}

// observeLogWall records the cluster clock of the state, in milliseconds since the Unix epoch,
// after an applied entry or a restored snapshot has set it. It does not change the cluster clock:
// update uses the record. Every entry is stamped before this call, so each base computed here is
// too low, and the highest is the best estimate.
func (c *clusterClock) observeLogWall(wall int64) {
	base := wall - c.own.Monotonic().Milliseconds()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasLogBase || base > c.logBase {
		c.logBase, c.hasLogBase = base, true
	}
}
