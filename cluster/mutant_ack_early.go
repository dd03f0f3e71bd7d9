//go:build mutant_ack_early

package cluster

import (
	"bytes"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// hand tells what an entry will do before anybody else has it.
func (p *proposer) hand(data []byte) raft.ApplyFuture {
	future := p.node.raft.ApplyLog(raft.Log{Data: data}, 0)
	var state bytes.Buffer
	copied := fsm.New()
	r := p.node.replica
	if err := r.capture().Write(&state); err != nil || copied.Restore(&state) != nil {
		return future
	}
	if outcome, err := copied.Apply(copied.Status().Index+1, p.term, data); err == nil && !outcome.Skipped {
		r.mu.Lock()
		defer r.mu.Unlock()
		p.node.observe(outcome)
	}
	return future
}
