package cluster

import (
	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// Status is what a member knows of itself and the cluster.
type Status struct {
	ID       raft.ServerID
	Role     string // leader, follower, candidate or shutdown
	Serving  bool   // leads, and has begun to serve
	Behind   bool   // has not applied what the leader had applied a second ago, or has not heard of the leader yet
	Learning bool   // is a member that does not vote yet, and is to
	Term     uint64 // of raft
	LeaderID raft.ServerID
	Commit   uint64 // commit index
	Last     uint64 // index of the last entry in the log
	Servers  []raft.Server
	State    fsm.Status
}
