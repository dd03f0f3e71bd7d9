//go:build !mutant_ack_early

package cluster

import "github.com/hashicorp/raft"

// hand gives an entry to raft. What it did is told when it is applied, that is, committed.
func (p *proposer) hand(data []byte) raft.ApplyFuture {
	return p.node.raft.ApplyLog(raft.Log{Data: data}, 0) // 0: its timeout would only cover the queue
}
