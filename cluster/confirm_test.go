package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// peerFunc is a peer.Client.
type peerFunc func(ctx context.Context, member raft.Server, method peer.Method,
	request []byte) ([]byte, error)

func (f peerFunc) Call(ctx context.Context, member raft.Server, method peer.Method,
	request []byte,
) ([]byte, error) {
	return f(ctx, member, method, request)
}

// serversOf returns a configuration of voters, whose addresses are their ids.
func serversOf(ids ...raft.ServerID) []raft.Server {
	var servers []raft.Server
	for _, id := range ids {
		servers = append(servers, raft.Server{ID: id, Address: raft.ServerAddress(id)})
	}
	return servers
}

// † A majority of the voters, this node included, confirms a leadership: each of them answers after
// the call, and knows no later term. A leader without that confirmation answers no reads.
func TestConfirmNeedsAMajorityInThisTerm(t *testing.T) {
	const term = 7
	voters := serversOf("self", "a", "b")
	nonVoters := append(serversOf("self", "a", "b"), raft.Server{ID: "c", Suffrage: raft.Nonvoter},
		raft.Server{ID: "d", Suffrage: raft.Nonvoter})
	for name, test := range map[string]struct {
		servers   []raft.Server
		own       uint64                   // term of this node
		terms     map[raft.ServerID]uint64 // of the members that answer
		closing   bool                     // the node starts no goroutine any more
		confirmed bool
	}{
		"the only member": {servers: serversOf("self"), own: term, confirmed: true},
		"all agree": {
			servers: voters, own: term,
			terms: map[raft.ServerID]uint64{"a": term, "b": term}, confirmed: true,
		},
		"one does not answer": {
			servers: voters, own: term,
			terms: map[raft.ServerID]uint64{"b": term}, confirmed: true,
		},
		"one knows an earlier term only": {
			servers: voters, own: term,
			terms: map[raft.ServerID]uint64{"b": term - 1}, confirmed: true,
		},
		"none answers": {servers: voters, own: term},
		"the others know a later term": {
			servers: voters, own: term,
			terms: map[raft.ServerID]uint64{"a": term + 1, "b": term + 1},
		},
		"this node knows a later term": {
			servers: voters, own: term + 1,
			terms: map[raft.ServerID]uint64{"a": term, "b": term},
		},
		"only non-voters agree": {
			servers: nonVoters, own: term,
			terms: map[raft.ServerID]uint64{"c": term, "d": term},
		},
		"this node is no member": {
			servers: serversOf("a", "b"), own: term,
			terms: map[raft.ServerID]uint64{"a": term, "b": term},
		},
		"the node closes": {
			servers: voters, own: term,
			terms: map[raft.ServerID]uint64{"a": term, "b": term}, closing: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := confirmer{
				id: "self", term: func() uint64 { return test.own },
				servers: func() []raft.Server { return test.servers }, timeout: time.Minute,
				client: peerFunc(func(_ context.Context, member raft.Server, _ peer.Method,
					_ []byte,
				) ([]byte, error) {
					known, answers := test.terms[member.ID]
					if !answers {
						return nil, peer.ErrUnreachable
					}
					return peer.EncodeTerm(known, 0), nil
				}),
				start: func(work func()) bool {
					if !test.closing {
						go work()
					}
					return !test.closing
				},
			}
			if err := c.confirm(t.Context(), term); errors.Is(err,
				peer.ErrUnconfirmed) == test.confirmed || (err == nil) != test.confirmed {
				t.Errorf("%v, want confirmed %v", err, test.confirmed)
			}
		})
	}
}
