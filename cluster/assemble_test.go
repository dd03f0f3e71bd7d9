package cluster

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
)

// nobodyThere is a network without anybody.
type nobodyThere struct{}

func (nobodyThere) Call(context.Context, raft.Server, peer.Method, []byte) ([]byte, error) {
	return nil, errors.New("unreachable")
}

// What was to be a cluster of two may be one of one, as long as it has not begun: the list of members is read again meanwhile.
func TestInitialMembersMayChangeBeforeTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other := Peer{"n1", "n1:7400"}, Peer{"n2", "n2:7400"}
		lists := [][]Peer{{own, other}, nil, {own}} // nil stands for one that cannot be read
		newcomer := &Newcomer{ID: "n1.1", Address: own.Address, Peers: []Peer{own, other}, Log: slog.New(slog.DiscardHandler)}
		newcomer.Reload = func() ([]Peer, error) {
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
