package node

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster"
	"holdfast/cluster/peer"
)

// Without a leader the reason names who is missing and since when, and after a while what can be
// done if they are lost.
func TestReasonNamesWhoIsMissing(t *testing.T) {
	voter := func(id raft.ServerID) raft.Server { return raft.Server{ID: id, Suffrage: raft.Voter} }
	servers := []raft.Server{
		voter("n1.a"), voter("n2.b"), voter("n3.c"), {ID: "n4.d", Suffrage: raft.Nonvoter},
	}
	away := func(times ...time.Duration) (list []peer.Missing) {
		for i, d := range times {
			list = append(list, peer.Missing{Server: servers[i+1], For: d})
		}
		return list
	}
	for name, test := range map[string]struct {
		missing []peer.Missing
		want    string
		recover bool
	}{
		"nobody is away": {nil, "cluster: no leader is known", false},
		"one": {
			away(time.Hour),
			"cluster: no leader is known: 1 of 3 voters do not answer: n2 (for 1h0m0s)", false,
		},
		"two, just now": {
			away(2*time.Second, 90*time.Second),
			"cluster: no leader is known: 2 of 3 voters do not answer: n2 (for 2s), n3 (for 1m30s)",
			false,
		},
		"two, for long": {
			away(time.Hour, time.Hour),
			"cluster: no leader is known: 2 of 3 voters do not answer: n2 (for 1h0m0s), n3 (for 1h0m0s); ",
			true,
		},
		"two, one of them just now": {
			away(time.Hour, 10*time.Second),
			"cluster: no leader is known: 2 of 3 voters do not answer: n2 (for 1h0m0s), n3 (for 10s)",
			false,
		},
		"a non-voter": {
			[]peer.Missing{{Server: servers[3], For: time.Hour}},
			"cluster: no leader is known",
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := noLeader(&cluster.Status{Servers: servers, Missing: test.missing}).Error()
			if !strings.HasPrefix(got, test.want) ||
				strings.Contains(got, "raft recover") != test.recover {
				t.Errorf("%s", got)
			}
		})
	}
}
