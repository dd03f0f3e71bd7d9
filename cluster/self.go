package cluster

import (
	"context"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/replica"
	"holdfast/fsm"
)

// self is what this member knows of itself, and of the cluster by its own raft. It is safe for
// concurrent use.
type self struct {
	raft.Server // id and address by which the others know this member
	raft        *raft.Raft
	replica     *replica.Replica
	client      peer.Client
	// acknowledged returns what the others have had on their disks: see peer.Statuses.Acknowledged.
	acknowledged func() map[raft.ServerID]uint64

	wall           func() int64
	freeSpace      func() (free uint64, low bool)
	brokerDownFor  func() time.Duration
	broker         Broker
	autoTotalBytes int64
	// heard returns whom this member hears as the leader: see sameBroker.state.
	heard func() (list map[raft.ServerID]peer.Hearing, alone bool)
}

// servers returns the latest configuration that this member knows.
func (s *self) servers() []raft.Server {
	future := s.raft.GetConfiguration()
	if future.Error() != nil {
		return nil // raft v1.7.3 never fails here
	}
	return future.Configuration().Servers
}

// term returns raft's current term.
func (s *self) term() uint64 { return s.raft.CurrentTerm() }

// leader returns the id of the leader that this node hears of; empty for none.
func (s *self) leader() raft.ServerID {
	_, id := s.raft.LeaderWithID()
	return id
}

// callLeader calls the leader that this member knows. The error is ErrNotLeader if it knows none or
// is itself the leader.
func (s *self) callLeader(ctx context.Context, method peer.Method, request []byte) ([]byte, error) {
	id := s.leader()
	leader, known := peer.Find(s.servers(), id)
	if id == s.ID || !known {
		return nil, peer.ErrNotLeader
	}
	return s.client.Call(ctx, leader, method, request)
}

// raftState returns raft's state as peer.Status.State has it.
func (s *self) raftState() string {
	switch s.raft.State() {
	case raft.Leader:
		return "leader"
	case raft.Follower:
		return "follower"
	case raft.Candidate:
		return "candidate"
	default:
		return "shutdown"
	}
}

// lastTerm returns the term of the last entry in the log. Raft exposes it only in Stats.
func (s *self) lastTerm() uint64 {
	term, _ := strconv.ParseUint(s.raft.Stats()["last_log_term"], 10, 64) // always a number
	return term
}

// pinned reports whether an operator has pinned the member as a non-voter.
func (s *self) pinned(id raft.ServerID) (pinned bool) {
	s.replica.View(func(m *fsm.Machine) { pinned = m.Pinned(string(id)) })
	return pinned
}

// learning reports whether this node is a non-voter that autopilot may promote.
func (s *self) learning(servers []raft.Server) bool {
	server, member := peer.Find(servers, s.ID)
	return member && server.Suffrage != raft.Voter && !s.pinned(server.ID)
}

// settings returns the settings in force, and whether any are.
func (s *self) settings() (inForce fsm.Settings, configured bool) {
	s.replica.View(func(m *fsm.Machine) { inForce, configured = m.Settings() })
	return inForce, configured
}

// applied returns the index of the last entry in the state.
func (s *self) applied() uint64 { return s.replica.Status().Index }

// version returns the version of the log that is in force.
func (s *self) version() uint32 { return s.replica.Status().Version }

// diskLow reports whether the disk is nearly full.
func (s *self) diskLow() bool {
	_, low := s.freeSpace()
	return low
}

// status returns what this member says of itself.
func (s *self) status() peer.Status {
	contact := time.Duration(-1)
	if last := s.raft.LastContact(); !last.IsZero() {
		contact = time.Since(last)
	}
	if s.raft.State() == raft.Leader {
		contact = 0
	}
	servers := s.servers()
	question, place := s.broker.Asked()
	heard, alone := s.heard()
	return peer.Status{
		ID: s.ID, Address: s.Address, HasState: len(servers) > 0 || s.raft.LastIndex() > 0,
		State: s.raftState(), Leader: s.leader(), Servers: servers,
		Term: s.raft.CurrentTerm(), LastIndex: s.raft.LastIndex(), LastTerm: s.lastTerm(),
		Commit:  s.raft.CommitIndex(),
		Applied: s.applied(), Contact: contact, Version: fsm.Version,
		BrokerUp: s.brokerDownFor() == 0, DiskLow: s.diskLow(),
		Wall: s.wall(), Acknowledged: s.acknowledged(),
		Question: question, Place: place, Heard: heard, AutoTotalBytes: s.autoTotalBytes,
		Alone: alone,
	}
}

// standing returns what this node knows of an id, with the member's address if it is Known. If this
// node has no leader or is not a member itself, its configuration may be stale. An unlisted id is
// then Possible: it may be the new leader, which must be able to replicate to this node.
func (s *self) standing(id raft.ServerID) (peer.Standing, raft.ServerAddress) {
	servers := s.servers()
	if server, known := peer.Find(servers, id); known {
		return peer.Known, server.Address
	}
	if _, member := peer.Find(servers, s.ID); s.leader() == "" || !member {
		return peer.Possible, ""
	}
	return peer.Stranger, ""
}
