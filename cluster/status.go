package cluster

import (
	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// Status is what a member knows of itself and the cluster.
type Status struct {
	ID       raft.ServerID
	Role     string // leader, follower, candidate or shutdown
	Serving  bool   // accepts proposals and reads: the LeaderStart is applied. It is set before Observer.Serve is called
	Behind   bool   // at the last comparison it had not applied what the leader had applied at the one before; true before the first; false while Serving
	Learning bool   // a non-voter that autopilot may promote
	Term     uint64 // of raft
	LeaderID raft.ServerID
	Commit   uint64 // commit index
	Last     uint64 // index of the last entry in the log
	Servers  []raft.Server
	State    fsm.Status
}
