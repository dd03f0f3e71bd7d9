package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// nobodyThere is a network in which no peer can be reached.
type nobodyThere struct{}

func (nobodyThere) Call(context.Context, raft.Server, peer.Method, []byte) ([]byte, error) {
	return nil, errors.New("unreachable")
}

// A node reads the list of initial members again until the cluster is bootstrapped. So a cluster
// that was planned with two members may be bootstrapped with one.
func TestInitialMembersMayChangeBeforeTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other := InitialMember{"n1", "n1:7400"}, InitialMember{"n2", "n2:7400"}
		// what Reload returns, call by call; nil stands for a list that cannot be read
		lists := [][]InitialMember{{own, other}, nil, {own}}
		newcomer := &Newcomer{
			ID: "n1.1", Address: own.Address, Peers: []InitialMember{own, other},
			Log: slog.New(slog.DiscardHandler),
		}
		newcomer.Reload = func() ([]InitialMember, error) {
			list := lists[0]
			lists = lists[1:]
			if list == nil {
				return nil, errors.New("unreadable")
			}
			return list, nil
		}
		members, err := newcomer.Assemble(t.Context(), nobodyThere{})
		if err != nil || len(members) != 1 || members[0].ID != "n1.1" || len(lists) != 0 {
			t.Errorf("%v, %v, %d lists unread", members, err, len(lists))
		}
	})
}

// uncommitted is a peer whose configuration lists the node n2.1. Its leader answers that n2.1 is no
// member, and from the third call on that it is one.
type uncommitted struct{ asked int }

func (u *uncommitted) Call(_ context.Context, _ raft.Server, method peer.Method, _ []byte) ([]byte,
	error,
) {
	switch method {
	case peer.MethodPeerStatus:
		return json.Marshal(peer.Status{
			ID: "n1.1", HasState: true, LastIndex: 9,
			Servers: []raft.Server{{ID: "n1.1"}, {ID: "n2.1"}},
		})
	case peer.MethodIsMember:
		u.asked++
		return []byte(strconv.FormatBool(u.asked > 2)), nil
	default:
		return nil, errors.New("unexpected call")
	}
}

// A node that is in a peer's configuration waits until the leader says that the node is a member.
// It logs why it waits.
func TestListedNodeWaitsForTheLeaderAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		newcomer := &Newcomer{
			ID: "n2.1", Address: "n2:7400",
			Peers: []InitialMember{{"n1", "n1:7400"}, {"n2", "n2:7400"}},
			Log:   slog.New(slog.NewTextHandler(&logged, nil)),
		}
		var there uncommitted
		members, err := newcomer.Assemble(t.Context(), &there)
		if members != nil || err != nil || there.asked != 3 {
			t.Errorf("%v, %v, asked %d times", members, err, there.asked)
		}
		if !strings.Contains(logged.String(), "n1 lists this node, but the leader does not") {
			t.Errorf("the reason is not logged: %q", logged.String())
		}
	})
}
