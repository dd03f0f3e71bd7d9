package peer

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// PollInterval is the interval and the timeout of the regular status poll. A member that is behind
// (see IsBehind) polls four times as often.
const PollInterval = time.Second

// Statuses is what a member knows of the others from the last poll whose answers were given to
// Keep. It is safe for concurrent use.
type Statuses struct {
	self      raft.ServerID
	client    Client
	servers   func() []raft.Server
	monotonic func() time.Duration

	mu       sync.Mutex
	answered map[raft.ServerID]Answer // answers to the poll that was kept last
	// acknowledged are the highest commit indexes that members have reported. A member has its
	// entries up to there on its disk.
	acknowledged map[raft.ServerID]uint64

	// missing has the members that did not answer the last poll, and the monotonic time since when.
	missing map[raft.ServerID]time.Duration

	polled bool // Keep was called
	// at the last comparison this member had applied what the leader had applied at the comparison
	// before
	caughtUp      bool
	leaderApplied uint64        // applied index of the leader at the last comparison
	comparedAt    time.Duration // monotonic time of the last comparison
}

// Answer is what a member answered to a poll.
type Answer struct {
	Status
	// ClockBase is the member's wall clock at this process's monotonic time 0, in milliseconds
	// since the Unix epoch.
	ClockBase int64
}

// NewStatuses returns the statuses of the other members, as the member self keeps them. servers
// returns the latest configuration that self knows. monotonic returns the time since any fixed
// moment.
func NewStatuses(self raft.ServerID, client Client, servers func() []raft.Server,
	monotonic func() time.Duration,
) *Statuses {
	return &Statuses{self: self, client: client, servers: servers, monotonic: monotonic}
}

// Poll asks all other members at once, and returns the answers that arrived in time. It does not
// store them: see Keep.
func (s *Statuses) Poll(ctx context.Context, timeout time.Duration) map[raft.ServerID]Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var mu sync.Mutex
	answered := make(map[raft.ServerID]Answer)
	var asking sync.WaitGroup
	for _, server := range Others(s.servers(), s.self) {
		asking.Go(func() {
			asked := s.monotonic()
			status, err := AskStatus(ctx, s.client, server)
			if err != nil || status.ID != server.ID {
				return
			}
			now := s.monotonic()
			// about how long the answer was under way: the member read its clock that long ago
			travel := (now - asked) / 2
			mu.Lock()
			defer mu.Unlock()
			answered[server.ID] = Answer{status, status.Wall + (travel - now).Milliseconds()}
		})
	}
	asking.Wait()
	return answered
}

// Keep stores the answers of a poll, and returns those that it stored before. The caller must not
// change the map any more. first says that this is the first call.
func (s *Statuses) Keep(answered map[raft.ServerID]Answer) (before map[raft.ServerID]Answer,
	first bool,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// without those that are no members any more
	acknowledged := make(map[raft.ServerID]uint64)
	missing, now := make(map[raft.ServerID]time.Duration), s.monotonic()
	for _, server := range Others(s.servers(), s.self) {
		answer, ok := answered[server.ID]
		if index := max(s.acknowledged[server.ID], answer.Commit); index > 0 {
			acknowledged[server.ID] = index
		}
		if since, before := s.missing[server.ID]; !ok && before {
			missing[server.ID] = since
		} else if !ok {
			missing[server.ID] = now
		}
	}
	s.acknowledged, s.missing = acknowledged, missing
	before, first = s.answered, !s.polled
	s.answered, s.polled = answered, true
	return before, first
}

// Missing is a member that does not answer.
type Missing struct {
	raft.Server
	For time.Duration // how long ago the first poll was that it did not answer
}

// Missing returns the members that did not answer the last poll, in the order of the configuration.
func (s *Statuses) Missing() (list []Missing) {
	servers := Others(s.servers(), s.self)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.monotonic()
	for _, server := range servers {
		if since, missing := s.missing[server.ID]; missing {
			list = append(list, Missing{server, now - since})
		}
	}
	return list
}

// Acknowledged returns, for each other member, the highest commit index that it has reported to
// this process. The member has had its entries up to there on its disk, and none of them is ever
// deleted but by compaction. If its log ends before that now, its data was put back to an older
// copy. The caller must not change the map.
func (s *Statuses) Acknowledged() map[raft.ServerID]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acknowledged
}

// CompareWithLeader records whether this member, whose applied index is given, has applied what the
// leader had applied at the last comparison. A comparison that is more than maxComparisonAge ago
// does not count: this member then has to apply what the leader has applied now.
func (s *Statuses) CompareWithLeader(leader raft.ServerID, applied uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.monotonic()
	if leader == s.self {
		// so that, after its leadership, it is compared with this index, and not with what its
		// successor has applied by then
		s.leaderApplied, s.comparedAt = applied, now
		return
	}
	status, answered := s.answered[leader]
	if !answered {
		return // without the leader's answer there is nothing to compare with
	}
	if s.leaderApplied == 0 || now-s.comparedAt > maxComparisonAge {
		s.leaderApplied = status.Applied
	}
	s.comparedAt = now
	s.caughtUp = applied >= s.leaderApplied
	s.leaderApplied = status.Applied
}

// maxComparisonAge bounds the age of a comparison with the leader.
const maxComparisonAge = 5 * PollInterval

// IsBehind reports whether this member, at the last comparison with the leader, had not applied
// what the leader had applied at the comparison before. It is true until the first comparison.
func (s *Statuses) IsBehind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.caughtUp
}

// Answering returns how many members answered the poll that was kept last, this one included.
func (s *Statuses) Answering() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.answered) + 1
}

// DiskSpace says which members are short of disk space, as this one knows.
type DiskSpace struct {
	// members that are; this one first, the others in the order of the configuration
	Low []raft.ServerID
	// OtherVoters is how many other voters answered the last poll, and have space.
	OtherVoters int
	// Refused says that less than a majority of the voters answers and has space, and that some
	// member is short of it: what would make the state larger is refused.
	Refused bool
}

// DiskSpace returns which members are short of disk space. ownLow says that this one is.
func (s *Statuses) DiskSpace(ownLow bool) (space DiskSpace) {
	servers := s.servers()
	s.mu.Lock()
	defer s.mu.Unlock()
	voters, withSpace := 0, 0
	if ownLow {
		space.Low = append(space.Low, s.self)
	}
	for _, server := range servers {
		votes, isSelf := server.Suffrage == raft.Voter, server.ID == s.self
		answer, answered := s.answered[server.ID]
		low := answer.DiskLow
		if isSelf {
			answered, low = true, ownLow
		}
		if votes {
			voters++
		}
		switch {
		case answered && low && !isSelf:
			space.Low = append(space.Low, server.ID)
		case answered && !low && votes:
			withSpace++
			if !isSelf {
				space.OtherVoters++
			}
		}
	}
	space.Refused = len(space.Low) > 0 && withSpace <= voters/2
	return space
}

// AutoTotalBytes returns the least limit on keys and values that a member's memory allows, as far
// as it is known; own is this member's. all says that every member answered the last poll.
func (s *Statuses) AutoTotalBytes(own int64) (least int64, all bool) {
	least, all = own, true
	for _, server := range Others(s.servers(), s.self) {
		status, answered := s.Of(server.ID)
		switch {
		case !answered || status.AutoTotalBytes <= 0:
			all = false
		default:
			least = min(least, status.AutoTotalBytes)
		}
	}
	return least, all
}

// Of returns what a member answered to the last poll, if it did.
func (s *Statuses) Of(id raft.ServerID) (Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, ok := s.answered[id]
	return answer.Status, ok
}

// AgreedVersion returns the newest version of the log that every member can apply; own is this
// member's version. If a member did not answer the last poll, it returns the version in force. The
// result is never older than the version in force.
func (s *Statuses) AgreedVersion(own, inForce uint32) uint32 {
	inForce = max(inForce, 1)
	lowest := own
	for _, server := range Others(s.servers(), s.self) {
		status, answered := s.Of(server.ID)
		if !answered {
			return inForce
		}
		lowest = min(lowest, status.Version)
	}
	return max(inForce, lowest)
}
