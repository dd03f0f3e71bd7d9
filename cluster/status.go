package cluster

import (
	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// Status is what a member knows of itself and the cluster.
type Status struct {
	ID   raft.ServerID
	Role string // leader, follower, candidate or shutdown
	// leads, and accepts proposals and reads; true once the LeaderStart (its first entry) is
	// applied, before Observer.Serve is called
	Serving bool
	// has not applied what the leader had applied one poll earlier; true before the first
	// comparison, false while Serving
	Behind   bool
	Learning bool   // a non-voter that autopilot may promote
	Term     uint64 // raft's current term
	LeaderID raft.ServerID
	Commit   uint64 // commit index
	Last     uint64 // index of the last entry in the log
	Servers  []raft.Server
	State    fsm.Status
	// Divergence wraps ErrReplicasDiffer if this node leads and the replicas had different states
	// when it last compared them, which it does every minute.
	Divergence error
	// OtherBroker wraps ErrOtherBroker if this node is at another broker than the others. Apart are
	// the members that are at another broker than this node, if it leads.
	OtherBroker error
	Apart       []raft.ServerID
	// DiskLow are the members that are short of disk space, as far as this one knows. StorageLow
	// says that this node serves and refuses what would grow, because so many are that a majority
	// of the voters has no space.
	DiskLow    []raft.ServerID
	StorageLow bool
}
