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

// The leader that made a member a voter is lost. Whether the promoted member is the only one that knows, or one that does not know yet, those
// that are left elect a leader.
func TestPromotionOfWhichNotAllKnow(t *testing.T) {
	for name, test := range map[string]struct {
		members       []raft.ServerID
		promoted      raft.ServerID
		knowing, left []raft.ServerID
		leader        raft.ServerID // the only one that can lead, or empty
	}{
		"it alone knows":                 {[]raft.ServerID{"n1", "n2", "n3"}, "n3", []raft.ServerID{"n3"}, []raft.ServerID{"n1", "n3"}, "n3"},
		"it does not know":               {[]raft.ServerID{"n1", "n2", "n3"}, "n3", []raft.ServerID{"n1"}, []raft.ServerID{"n1", "n3"}, "n1"},
		"it does not know, of four":      {[]raft.ServerID{"n1", "n2", "n3", "n4"}, "n4", []raft.ServerID{"n1", "n3"}, []raft.ServerID{"n1", "n3", "n4"}, ""},
		"another does not know, of four": {[]raft.ServerID{"n1", "n2", "n3", "n4"}, "n4", []raft.ServerID{"n3", "n4"}, []raft.ServerID{"n1", "n3", "n4"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := servers(test.members...)
			after := slices.Clone(before)
			before[slices.Index(test.members, test.promoted)].Suffrage = raft.Nonvoter
			network := NewNetwork()
			var members []*member
			for _, id := range test.left {
				stores := memoryStores()
				log := []*raft.Log{{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: before})}}
				if slices.Contains(test.knowing, id) {
					log = append(log, &raft.Log{Index: 2, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: after})})
				}
				if err := errors.Join(stores.Log.StoreLogs(log), stores.Stable.SetUint64([]byte("CurrentTerm"), 1)); err != nil {
					t.Fatal(err)
				}
				members = append(members, startMember(t, network, id, nil, stores))
			}
			if n := leader(t, members...); test.leader != "" && n.ID() != test.leader {
				t.Errorf("%s leads", n.ID())
			}
		})
	}
}
