package cluster

import (
	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// Status is what a member knows of itself and the cluster.
type Status struct {
	ID       raft.ServerID
	Role     string // leader, follower, candidate or shutdown
	Serving  bool   // accepts proposals and reads: LeaderStart is applied, and Observer.Serve may not have been called yet
	Behind   bool   // has not applied what the leader had applied at the poll before, or was never compared with a leader; false while Serving
	Learning bool   // is a member that does not vote yet, and is to
	Term     uint64 // of raft
	LeaderID raft.ServerID
	Commit   uint64 // commit index
	Last     uint64 // index of the last entry in the log
	Servers  []raft.Server
	State    fsm.Status
}
