package cluster

import (
	"errors"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
)

// A heartbeat that reached raft beside its main goroutine, while that counted votes, made two leaders of one term.
func TestHeartbeatsNeverRaiseTheTerm(t *testing.T) {
	for name, test := range map[string]struct {
		state  raft.RaftState
		term   uint64
		passes bool
	}{
		"follower in its term":       {raft.Follower, 7, true},
		"follower in a later term":   {raft.Follower, 8, true}, // raft rejects it
		"follower in an older term":  {raft.Follower, 6, false},
		"candidate in an older term": {raft.Candidate, 6, false},
		"candidate in its term":      {raft.Candidate, 7, false},
		"leader in an older term":    {raft.Leader, 6, false},
		"before raft is there":       {raft.Shutdown, 0, false},
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

// The entry that made a member a voter is on its disk and was on that of the leader, which is lost. It has all that was committed, and must be
// elected by the one that does not know of its promotion yet.
func TestVoterThatIsNotKnownAsOneIsElected(t *testing.T) {
	network := NewNetwork()
	before := servers("n1", "n2", "n3")
	after := slices.Clone(before)
	before[2].Suffrage = raft.Nonvoter
	members := make([]*member, 0, 2)
	for _, id := range []raft.ServerID{"n1", "n3"} {
		stores := memoryStores()
		log := []*raft.Log{{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: before})}}
		if id == "n3" {
			log = append(log, &raft.Log{Index: 2, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: after})})
		}
		if err := errors.Join(stores.Log.StoreLogs(log), stores.Stable.SetUint64([]byte("CurrentTerm"), 1)); err != nil {
			t.Fatal(err)
		}
		members = append(members, startMember(t, network, id, nil, stores))
	}
	if n := leader(t, members...); n.ID() != "n3" {
		t.Errorf("%s leads", n.ID())
	}
}
