//go:build !mutant_same_id

package cluster

import "github.com/hashicorp/raft"

// RaftID returns the id under which the node is a member.
func (i Identity) RaftID() raft.ServerID { return raft.ServerID(i.Node + "." + i.Draw) }
