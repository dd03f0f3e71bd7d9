package cluster

import (
	"slices"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// diskSpace knows which members are short of disk space. A minority that is does not stop the others: such a member is
// written to until its disk is full, and then ends, as one that dies. It is safe for concurrent use.
type diskSpace struct {
	id      raft.ServerID        // of this member
	own     func() bool          // this member is short of disk space
	servers func() []raft.Server // all members
	peers   *peer.Statuses
}

// low reports whether less than a majority of the voters answers and has space. Then what would make the state larger is
// refused.
func (d *diskSpace) low() bool {
	servers := d.servers()
	_, withSpace := d.peers.DiskLow()
	if self, member := peer.Find(servers, d.id); member && self.Suffrage == raft.Voter && !d.own() {
		withSpace++
	}
	low := d.members()
	return len(low) > 0 && withSpace <= countVoters(servers)/2
}

// members returns the members that are short of disk space.
func (d *diskSpace) members() []raft.ServerID {
	low, _ := d.peers.DiskLow()
	if d.own() {
		low = slices.Insert(low, 0, d.id)
	}
	return low
}
