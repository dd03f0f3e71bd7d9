package cluster

import (
	"testing"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// A leader without a broker transfers the leadership to the voter with the longest log that has
// one. The order of a map does not decide between equal ones.
func TestLeadershipGoesToAVoterWithABroker(t *testing.T) {
	up := func(lastIndex uint64) peer.Answer {
		return peer.Answer{Status: peer.Status{BrokerUp: true, LastIndex: lastIndex}}
	}
	servers := servers("n1", "n2", "n3", "n4")
	servers[3].Suffrage = raft.Nonvoter
	for name, test := range map[string]struct {
		answers map[raft.ServerID]peer.Answer
		blocked raft.ServerID
		want    raft.ServerID
	}{
		"nobody answers": {},
		"the longest log": {answers: map[raft.ServerID]peer.Answer{
			"n2": up(7),
			"n3": up(8),
		}, want: "n3"},
		"equal logs": {answers: map[raft.ServerID]peer.Answer{
			"n2": up(8),
			"n3": up(8),
		}, want: "n2"},
		"an empty log": {
			answers: map[raft.ServerID]peer.Answer{"n3": up(0)},
			want:    "n3",
		},
		"without a broker": {answers: map[raft.ServerID]peer.Answer{"n2": {Status: peer.Status{LastIndex: 9}}, "n3": up(8)}, want: "n3"},
		"blocked": {answers: map[raft.ServerID]peer.Answer{
			"n2": up(9),
			"n3": up(8),
		}, blocked: "n2", want: "n3"},
		"a non-voter and an old member": {answers: map[raft.ServerID]peer.Answer{
			"n4": up(9),
			"n9": up(9),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				best, found := fittestVoter(servers, test.answers,
					func(s *peer.Status) bool { return s.BrokerUp },
					func(id raft.ServerID) bool { return id == test.blocked })
				if best != test.want || found != (test.want != "") {
					t.Fatalf("%q, %t; want %q", best, found, test.want)
				}
			}
		})
	}
}
