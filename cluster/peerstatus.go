package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// PeerStatus is what a member says of itself.
type PeerStatus struct {
	ID        raft.ServerID      `json:"id"`
	Address   raft.ServerAddress `json:"address"`
	HasState  bool               `json:"hasState"` // it belongs, or has belonged, to a cluster
	State     string             `json:"state"`    // leader, follower, candidate or shutdown
	Leader    raft.ServerID      `json:"leader,omitempty"`
	Servers   []raft.Server      `json:"servers,omitempty"`
	Term      uint64             `json:"term"`
	LastIndex uint64             `json:"lastIndex"`
	LastTerm  uint64             `json:"lastTerm"`
	Commit    uint64             `json:"commitIndex"`
	Applied   uint64             `json:"appliedIndex"`
	Contact   time.Duration      `json:"lastContact"` // since it heard of a leader; negative for never
	Version   uint32             `json:"version"`     // what it can apply
	BrokerUp  bool               `json:"brokerUp"`
	DiskLow   bool               `json:"diskLow"`
	Wall      int64              `json:"wall"` // its clock, milliseconds since the Unix epoch
}

// AskPeerStatus asks a member what it says of itself.
func AskPeerStatus(ctx context.Context, peers Peers, member raft.Server) (PeerStatus, error) {
	body, err := peers.Call(ctx, member, MethodPeerStatus, nil)
	if err != nil {
		return PeerStatus{}, err
	}
	var status PeerStatus
	if err := json.Unmarshal(body, &status); err != nil {
		return PeerStatus{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	return status, nil
}

// peerStatuses is what a member knows of the others, from polling them every second. It is safe for concurrent use.
type peerStatuses struct {
	self      raft.ServerID
	servers   func() []raft.Server
	ask       func(ctx context.Context, server raft.Server) (PeerStatus, error)
	monotonic func() time.Duration

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

// poll asks all other members at once, and returns what came in time.
func (s *peerStatuses) poll(ctx context.Context, timeout time.Duration) map[raft.ServerID]peerAnswer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var mu sync.Mutex
	answered := make(map[raft.ServerID]peerAnswer)
	var asking sync.WaitGroup
	for _, server := range s.servers() {
		if server.ID == s.self {
			continue
		}
		asking.Go(func() {
			asked := s.monotonic()
			status, err := s.ask(ctx, server)
			if err != nil || status.ID != server.ID {
				return
			}
			now := s.monotonic()
			way := (now - asked) / 2 // of the answer, about
			mu.Lock()
			defer mu.Unlock()
			answered[server.ID] = peerAnswer{status, status.Wall + (way - now).Milliseconds()}
		})
	}
	asking.Wait()
	return answered
}

// refresh notes what members answered to a poll, and returns what they answered to the last one. first says that there was none.
func (s *peerStatuses) refresh(answered map[raft.ServerID]peerAnswer) (before map[raft.ServerID]peerAnswer, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, first = s.answered, !s.polled
	s.answered, s.polled = answered, true
	return before, first
}

// lookAtLeader notes whether this member's state has come to where the leader's was at the last look.
func (s *peerStatuses) lookAtLeader(leader raft.ServerID, applied uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, heard := s.answered[leader]
	if !heard {
		return // it keeps what it knows: without a leader nobody is ahead
	}
	if s.applied == 0 {
		s.applied = status.Applied
	}
	s.current = applied >= s.applied
	s.applied = status.Applied
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

// of returns what a member answered to the last poll, if it did.
func (s *peerStatuses) of(id raft.ServerID) (PeerStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, ok := s.answered[id]
	return answer.PeerStatus, ok
}

// agreedVersion returns the newest version that every member can apply, as far as they answered: a member that did not may be
// an old one. It never goes back from the version in force.
func (s *peerStatuses) agreedVersion(inForce uint32) uint32 {
	inForce = max(inForce, 1)
	lowest := uint32(fsm.Version)
	for _, server := range s.servers() {
		if server.ID == s.self {
			continue
		}
		status, answered := s.of(server.ID)
		if !answered {
			return inForce
		}
		lowest = min(lowest, status.Version)
	}
	return max(inForce, lowest)
}
