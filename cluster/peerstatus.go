package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// peerStatuses is what a member knows of the others, from polling them every second. It is safe for concurrent use.
type peerStatuses struct {
	mu       sync.Mutex
	answered map[raft.ServerID]peerAnswer // in the last poll

	polled  bool   // there was a poll
	current bool   // at the last poll this node had applied what the leader had at the one before
	applied uint64 // by the leader, at the last poll
}

// peerAnswer is what a member answered to a poll.
type peerAnswer struct {
	PeerStatus
	clockBase int64 // its wall clock at this node's monotonic time 0, in milliseconds since the Unix epoch
}

// pollInterval is how often the members ask each other.
const pollInterval = time.Second

// watchMembers asks the other members every second.
func (n *Node) watchMembers(ctx context.Context) {
	const impatient = pollInterval / 4 // until this node has caught up
	timer := time.NewTimer(0)
	defer timer.Stop()
	alone := 0
	for {
		n.poll(ctx)
		n.warnOfClock()
		n.noteMembers()
		n.lookAtLeader()
		if n.Behind() {
			timer.Reset(impatient)
		} else {
			timer.Reset(pollInterval)
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

// poll asks the other members for their status, and logs who does not answer any more, or answers again.
func (n *Node) poll(ctx context.Context) {
	answered := n.pollPeers(ctx, pollInterval)
	n.peers.mu.Lock()
	first := !n.peers.polled
	n.peers.mu.Unlock()
	for _, server := range n.servers() {
		_, now := answered[server.ID]
		_, before := n.peers.of(server.ID)
		switch {
		case server.ID == n.config.ID || ctx.Err() != nil:
		case before && !now:
			n.world.Log.Warn("a member does not answer", "id", server.ID, "address", server.Address)
		case now && !before && !first:
			n.world.Log.Info("a member answers", "id", server.ID, "address", server.Address)
		}
	}
	n.heard(answered)
}

// heard takes in what members answered to a poll.
func (n *Node) heard(answered map[raft.ServerID]peerAnswer) {
	n.peers.refresh(answered)
	n.clock.update(answered, n.servers(), n.config.ID)
}

// pollPeers asks all other members at once, and returns what came in time.
func (n *Node) pollPeers(ctx context.Context, timeout time.Duration) map[raft.ServerID]peerAnswer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var mu sync.Mutex
	answered := make(map[raft.ServerID]peerAnswer)
	var asking sync.WaitGroup
	for _, server := range n.servers() {
		if server.ID == n.config.ID {
			continue
		}
		asking.Go(func() {
			asked := n.world.Clock.Monotonic()
			status, err := AskPeerStatus(ctx, n.world.Peers, server)
			if err != nil || status.ID != server.ID {
				return
			}
			now := n.world.Clock.Monotonic()
			way := (now - asked) / 2 // of the answer, about
			mu.Lock()
			defer mu.Unlock()
			answered[server.ID] = peerAnswer{status, status.Wall + (way - now).Milliseconds()}
		})
	}
	asking.Wait()
	return answered
}

func (s *peerStatuses) refresh(answered map[raft.ServerID]peerAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered, s.polled = answered, true
}

// lookAtLeader notes whether the state has come to where the leader's was at the last look.
func (n *Node) lookAtLeader() {
	applied := n.replica.Status().Index
	_, id := n.raft.LeaderWithID()
	leader, heard := n.peers.of(id)
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	if !heard {
		return // it keeps what it knows: without a leader nobody is ahead
	}
	if n.peers.applied == 0 {
		n.peers.applied = leader.Applied
	}
	n.peers.current = applied >= n.peers.applied
	n.peers.applied = leader.Applied
}

func (s *peerStatuses) isBehind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.current
}

// answering returns how many members answered last time, this one included.
func (s *peerStatuses) answering() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.answered) + 1
}

// anyDiskLow reports whether another member that answered is short of disk space.
func (s *peerStatuses) anyDiskLow() bool {
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

func (s *peerStatuses) of(id raft.ServerID) (PeerStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, ok := s.answered[id]
	return answer.PeerStatus, ok
}

// ClockOffset returns how far this node's wall clock is ahead of the cluster's, and an error when that is more than it may be.
func (n *Node) ClockOffset() (time.Duration, error) {
	offset := n.clock.ahead()
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
	inForce := max(n.replica.Status().Version, 1)
	lowest := uint32(fsm.Version)
	for _, server := range n.servers() {
		if server.ID == n.config.ID {
			continue
		}
		description, answered := n.peers.of(server.ID)
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
// is none within the time of a poll.
func (n *Node) askAnyone(ctx context.Context, method Method, request []byte) []byte {
	ctx, cancel := context.WithTimeout(ctx, pollInterval)
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

// aloneRounds is how many polls in a row a node has to hear of no leader before it asks whether it still is a member.
const aloneRounds = 3

// countAlone counts the polls in a row in which this node heard of no leader, or did not find itself among the members.
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
