package raftfix

import (
	"testing"

	"github.com/hashicorp/raft"
)

// A heartbeat (here of term 7) is passed to raft only if raft is a follower that knows its term.
// Raft handles it outside of its main goroutine. If it raised the term there while the main
// goroutine counts votes, there could be two leaders of one term.
func TestHeartbeatsNeverRaiseTheTerm(t *testing.T) {
	for name, test := range map[string]struct {
		state  raft.RaftState
		term   uint64
		passes bool
	}{
		"follower in the heartbeat's term":  {raft.Follower, 7, true},
		"follower in a later term":          {raft.Follower, 8, true}, // raft rejects it
		"follower in an older term":         {raft.Follower, 6, false},
		"candidate in an older term":        {raft.Candidate, 6, false},
		"candidate in the heartbeat's term": {raft.Candidate, 7, false},
		"leader in an older term":           {raft.Leader, 6, false},
		"before raft is there":              {raft.Shutdown, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			answers := make(chan raft.RPCResponse, 1)
			passed := false
			rpc := raft.RPC{Command: &raft.AppendEntriesRequest{Term: 7}, RespChan: answers}
			passHeartbeat(rpc, test.state, test.term, func(raft.RPC) { passed = true })
			if passed != test.passes {
				t.Errorf("passed: %t", passed)
			}
			if passed {
				return
			}
			answer := (<-answers).Response.(*raft.AppendEntriesResponse)
			if answer.Success || answer.Term != test.term {
				t.Errorf("%+v", answer)
			}
		})
	}
}
