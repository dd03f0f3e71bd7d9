package cluster

import (
	"context"
	"fmt"
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
	versions map[raft.ServerID]uint32      // the last that was ever heard

	behind bool   // at the last two looks the state was behind the same commit index
	commit uint64 // at the last look
}

// surveyInterval is how often the members ask each other.
const surveyInterval = time.Second

// watchMembers asks the other members every second.
func (n *Node) watchMembers(ctx context.Context) {
	ticker := time.NewTicker(surveyInterval)
	defer ticker.Stop()
	alone := 0
	for {
		n.survey.take(n.describeAll(ctx, surveyInterval))
		n.wallOffset.Store(n.medianOffset())
		n.warnOfClock()
		n.noteMembers()
		n.survey.look(n.raft.CommitIndex(), func(commit uint64) bool {
			applied := n.replica.status().Index
			return n.log.lastCommand(commit, applied) <= applied
		})
		if alone = n.countAlone(alone); alone >= aloneRounds {
			n.checkRemoved(ctx)
			alone = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
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
			asked := n.world.Clock.Wall()
			description, err := Describe(ctx, n.world.Peers, server)
			if err != nil || description.ID != server.ID {
				return
			}
			// Half of the way there and back, which may have been long.
			description.Wall += (n.world.Clock.Wall() - asked) / 2
			description.Wall -= n.world.Clock.Wall() // from here on an offset
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
	if s.versions == nil {
		s.versions = make(map[raft.ServerID]uint32)
	}
	for id := range answered {
		s.versions[id] = answered[id].Version
	}
}

// look notes whether the state has come to where the log was at the last look.
func (s *survey) look(commit uint64, reached func(uint64) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = !reached(s.commit)
	s.commit = commit
}

func (s *survey) isBehind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.behind
}

func (s *survey) of(id raft.ServerID) (Description, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	description, ok := s.answered[id]
	return description, ok
}

// wall returns the cluster clock as this node, as the leader, stamps it: the lower median of the wall clocks of the voters in
// contact. One node with a wrong clock changes nothing, leader or not.
func (n *Node) wall() int64 { return n.world.Clock.Wall() + n.wallOffset.Load() }

// medianOffset returns the milliseconds from this node's wall clock to the lower median of the voters'.
func (n *Node) medianOffset() int64 {
	offsets := []int64{0} // this node's own
	for _, server := range n.servers() {
		if description, ok := n.survey.of(server.ID); ok && server.Suffrage == raft.Voter {
			offsets = append(offsets, description.Wall)
		}
	}
	slices.Sort(offsets)
	return offsets[(len(offsets)-1)/2]
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
	if off := err != nil; off != n.clockIsOff {
		n.clockIsOff = off
		n.world.Log.Warn("this node's clock, compared with the other members'", "offset", offset, "off", off)
	}
}

// noteMembers says what changed among the members that this one knows.
func (n *Node) noteMembers() {
	servers := n.servers()
	if slices.Equal(servers, n.knownServers) {
		return
	}
	n.knownServers = slices.Clone(servers)
	n.world.Log.Info("the members are now", "servers", servers)
}

// agreedVersion returns the newest version that every member can apply, as far as that is known: a member that was never heard
// of may be an old one. It never goes back.
func (n *Node) agreedVersion() uint32 {
	inForce := max(n.replica.status().Version, 1)
	lowest := uint32(fsm.Version)
	n.survey.mu.Lock()
	defer n.survey.mu.Unlock()
	for _, server := range n.servers() {
		if server.ID == n.config.ID {
			continue
		}
		version, heard := n.survey.versions[server.ID]
		if !heard {
			return inForce
		}
		lowest = min(lowest, version)
	}
	return max(inForce, lowest)
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
	ctx, cancel := context.WithTimeout(ctx, surveyInterval)
	defer cancel()
	for _, server := range n.servers() {
		if server.ID == n.config.ID {
			continue
		}
		// Without the id: a member that knows that this node was removed does not talk to it otherwise.
		body, err := n.world.Peers.Call(ctx, raft.Server{Address: server.Address}, MethodMember, []byte(n.config.ID))
		if err == nil && string(body) == "false" {
			n.world.Exit(ErrRemoved)
			return
		}
	}
}
