package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// survey is what a member knows of the others, from asking them every second.
type survey struct {
	mu       sync.Mutex
	answered map[raft.ServerID]Description // those that answered last time

	taken   bool   // there was a survey
	current bool   // the state was at the last look where the leader's was at the one before
	applied uint64 // by the leader, at the last look

	// Clocks as what they were at this node's monotonic time 0, in milliseconds since the Unix epoch. They move with the monotonic clock.
	bases     map[raft.ServerID]int64 // of each member that ever answered this process
	carried   int64                   // of the cluster, as the entries that moved it told
	isCarried bool
	base      int64 // of the cluster
	hasBase   bool
}

// surveyInterval is how often the members ask each other.
const surveyInterval = time.Second

// watchMembers asks the other members every second.
func (n *Node) watchMembers(ctx context.Context) {
	const impatient = surveyInterval / 4 // until this node has caught up
	timer := time.NewTimer(0)
	defer timer.Stop()
	alone := 0
	for {
		n.takeSurvey(ctx)
		n.setClock()
		n.warnOfClock()
		n.noteMembers()
		n.lookAtLeader()
		if n.Behind() {
			timer.Reset(impatient)
		} else {
			timer.Reset(surveyInterval)
		}
		n.announceAddress(ctx)
		if alone = n.countAlone(alone); alone >= aloneRounds {
			n.checkRemoved(ctx)
			alone = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// takeSurvey asks the other members, and says who answers no more, or again.
func (n *Node) takeSurvey(ctx context.Context) {
	answered := n.describeAll(ctx, surveyInterval)
	n.survey.mu.Lock()
	first := !n.survey.taken
	n.survey.mu.Unlock()
	for _, server := range n.servers() {
		_, now := answered[server.ID]
		_, before := n.survey.of(server.ID)
		switch {
		case server.ID == n.config.ID || ctx.Err() != nil:
		case before && !now:
			n.world.Log.Warn("a member does not answer", "id", server.ID, "address", server.Address)
		case now && !before && !first:
			n.world.Log.Info("a member answers", "id", server.ID, "address", server.Address)
		}
	}
	n.survey.take(answered)
}

// describeAll asks all other members at once, and returns what came in time.
func (n *Node) describeAll(ctx context.Context, timeout time.Duration) map[raft.ServerID]Description {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var mu sync.Mutex
	answered := make(map[raft.ServerID]Description)
	var asking sync.WaitGroup
	for _, server := range n.servers() {
		if server.ID == n.config.ID {
			continue
		}
		asking.Go(func() {
			asked := n.world.Clock.Monotonic()
			description, err := Describe(ctx, n.world.Peers, server)
			if err != nil || description.ID != server.ID {
				return
			}
			// Half of the way there and back, which may have been long; and from here on what its clock was at monotonic time 0
			// here, so that a clock that is set meanwhile moves nothing.
			now := n.world.Clock.Monotonic()
			description.Wall += ((now-asked)/2 - now).Milliseconds()
			mu.Lock()
			defer mu.Unlock()
			answered[server.ID] = description
		})
	}
	asking.Wait()
	return answered
}

func (s *survey) take(answered map[raft.ServerID]Description) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = answered
	s.taken = true
	if s.bases == nil {
		s.bases = make(map[raft.ServerID]int64)
	}
	for id := range answered {
		s.bases[id] = answered[id].Wall
	}
}

// lookAtLeader notes whether the state has come to where the leader's was at the last look.
func (n *Node) lookAtLeader() {
	applied := n.replica.status().Index
	_, id := n.raft.LeaderWithID()
	leader, heard := n.survey.of(id)
	n.survey.mu.Lock()
	defer n.survey.mu.Unlock()
	if !heard {
		return // it keeps what it knows: without a leader nobody is ahead
	}
	if n.survey.applied == 0 {
		n.survey.applied = leader.Applied
	}
	n.survey.current = applied >= n.survey.applied
	n.survey.applied = leader.Applied
}

func (s *survey) isBehind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.current
}

// answering returns how many members answered last time, this one included.
func (s *survey) answering() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.answered) + 1
}

// anyDiskLow reports whether another member that answered is short of disk space.
func (s *survey) anyDiskLow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.answered {
		if s.answered[id].DiskLow {
			return true
		}
	}
	return false
}

func (n *Node) diskLow() bool {
	_, low := n.world.FreeSpace()
	return low
}

func (s *survey) of(id raft.ServerID) (Description, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	description, ok := s.answered[id]
	return description, ok
}

// wall returns the cluster clock as this node, as the leader, stamps it: the lower median of the wall clocks of the members, carried on by
// the monotonic clock, so that one node with a wrong clock changes nothing, leader or not, and neither does a clock that is set.
// Before a majority of the voters was ever asked it is 0, which moves nothing.
func (n *Node) wall() int64 {
	n.survey.mu.Lock()
	defer n.survey.mu.Unlock()
	if !n.survey.hasBase {
		return 0
	}
	return n.survey.base + n.world.Clock.Monotonic().Milliseconds()
}

// setClock sets the cluster clock, if a majority of the voters answered the last survey. The clock of a member that did not answer this
// time counts as it was: else one wrong clock would decide where few members can be asked.
func (n *Node) setClock() {
	own := n.world.Clock.Wall() - n.world.Clock.Monotonic().Milliseconds()
	servers := n.servers()
	n.survey.mu.Lock()
	defer n.survey.mu.Unlock()
	bases, voters, answered := []int64{own}, 0, 1
	for _, server := range servers {
		_, now := n.survey.answered[server.ID]
		if server.Suffrage == raft.Voter {
			if voters++; now {
				answered++
			}
		}
		if base, known := n.survey.bases[server.ID]; known && server.ID != n.config.ID {
			bases = append(bases, base)
		}
	}
	if answered <= voters/2 {
		return
	}
	maps.DeleteFunc(n.survey.bases, func(id raft.ServerID, _ int64) bool {
		_, member := find(servers, id)
		return !member
	})
	if n.survey.isCarried {
		bases = withCarried(bases, n.survey.carried)
	}
	base := lowerMedian(bases)
	n.wallOffset.Store(base - own)
	n.survey.base, n.survey.hasBase = base, true
}

// withCarried adds the clock that the log carries where the members' own clocks could be two halves that disagree.
func withCarried(bases []int64, carried int64) []int64 {
	if len(bases)%2 == 0 {
		return append(bases, carried)
	}
	return bases
}

// lowerMedian returns the middle of the values, the lower one of two. There is at least one.
func lowerMedian(values []int64) int64 {
	values = slices.Sorted(slices.Values(values))
	return values[(len(values)-1)/2]
}

// carryClock notes the cluster's clock, in milliseconds since the Unix epoch, of an entry that is applied and moves it. The entry is older
// than the call, so the estimate that is furthest ahead is the best.
func (n *Node) carryClock(wall int64) {
	base := wall - n.world.Clock.Monotonic().Milliseconds()
	n.survey.mu.Lock()
	defer n.survey.mu.Unlock()
	if !n.survey.isCarried || base > n.survey.carried {
		n.survey.carried, n.survey.isCarried = base, true
	}
}

// ClockOffset returns how far this node's wall clock is ahead of the cluster's, and an error when that is more than it may be.
func (n *Node) ClockOffset() (time.Duration, error) {
	offset := -time.Duration(n.wallOffset.Load()) * time.Millisecond
	if offset.Abs() > n.config.MaxClockOffset {
		return offset, fmt.Errorf("this node's clock is %v off the other members': clients refuse what is more than a minute ahead", offset)
	}
	return offset, nil
}

// warnOfClock says once that the clock is off, and once that it is right again.
func (n *Node) warnOfClock() {
	offset, err := n.ClockOffset()
	switch off := err != nil; {
	case off && !n.clockIsOff:
		n.world.Log.Warn("this node's clock is off the other members'", "offset", offset, "most", n.config.MaxClockOffset)
	case !off && n.clockIsOff:
		n.world.Log.Info("this node's clock is right again", "offset", offset)
	}
	n.clockIsOff = err != nil
}

// noteMembers says what changed among the members that this one knows, and counts their leaders.
func (n *Node) noteMembers() {
	if _, leader := n.raft.LeaderWithID(); leader != "" && leader != n.knownLeader {
		n.knownLeader = leader
		n.world.Metrics.leaderChanges.Inc()
	}
	servers := n.servers()
	if slices.Equal(servers, n.knownServers) {
		return
	}
	n.knownServers = slices.Clone(servers)
	n.world.Log.Info("the members are now", "servers", servers)
}

// agreedVersion returns the newest version that every member can apply, as far as they answered: a member that did not may be
// an old one. It never goes back.
func (n *Node) agreedVersion() uint32 {
	inForce := max(n.replica.status().Version, 1)
	lowest := uint32(fsm.Version)
	for _, server := range n.servers() {
		if server.ID == n.config.ID {
			continue
		}
		description, answered := n.survey.of(server.ID)
		if !answered {
			return inForce
		}
		lowest = min(lowest, description.Version)
	}
	return max(inForce, lowest)
}

// announceAddress tells the leader that this member is at another address than the members know.
func (n *Node) announceAddress(ctx context.Context) {
	servers := n.servers()
	server, member := find(servers, n.config.ID)
	if !member || server.Address == n.config.Address || n.leadership.Load() != nil {
		return
	}
	request, err := json.Marshal(joinRequest{ID: n.config.ID, Address: n.config.Address, Version: fsm.Version})
	if err != nil {
		return // strings always encode
	}
	n.askAnyone(ctx, MethodJoin, request)
}

// askAnyone asks all other members at once, as one that need not be a member, and returns the first good answer, nil when there
// is none within the time of a survey.
func (n *Node) askAnyone(ctx context.Context, method Method, request []byte) []byte {
	ctx, cancel := context.WithTimeout(ctx, surveyInterval)
	defer cancel()
	servers := n.servers()
	answers := make(chan []byte, len(servers))
	asked := 0
	for _, server := range servers {
		if server.ID == n.config.ID {
			continue
		}
		asked++
		n.workers.Go(func() {
			// Without the id: a member that knows that this node was removed does not talk to it otherwise.
			body, err := n.world.Peers.Call(ctx, raft.Server{Address: server.Address}, method, request)
			if err == nil && body == nil {
				body = []byte{}
			}
			if err != nil {
				body = nil
			}
			answers <- body
		})
	}
	for range asked {
		if body := <-answers; body != nil {
			return body
		}
	}
	return nil
}

// aloneRounds is how many surveys in a row a node has to hear of no leader before it asks whether it still is a member.
const aloneRounds = 3

// countAlone counts the surveys in a row in which this node heard of no leader, or did not find itself among the members.
func (n *Node) countAlone(rounds int) int {
	servers := n.servers()
	_, member := find(servers, n.config.ID)
	_, leader := n.raft.LeaderWithID()
	if len(servers) > 0 && !member || leader == "" {
		return rounds + 1
	}
	return 0
}

// ErrRemoved says that this node is no member any more.
var ErrRemoved = fmt.Errorf("this node was removed from the cluster: to let it join anew, stop it, empty its data folder, and start it again")

// checkRemoved ends the process when the leader says that this node is no member.
func (n *Node) checkRemoved(ctx context.Context) {
	if string(n.askAnyone(ctx, MethodMember, []byte(n.config.ID))) == "false" {
		n.world.Exit(ErrRemoved)
	}
}
