package cluster

import (
	"bytes"
	"slices"
	"testing"

	"holdfast/cluster/raftlog"
	"holdfast/fsm"
	"holdfast/internal/policy"
	"holdfast/internal/testwait"
)

// A node offers only what changed in its own settings. A new policy from one node does not undo the
// limit that another node has changed.
func TestOffersOnlyWhatChanged(t *testing.T) {
	stores := []raftlog.Stores{memoryStores(), memoryStores(), memoryStores()}
	network := NewNetwork()
	ids := servers("n1", "n2", "n3")
	var members []*member
	for i, server := range ids {
		members = append(members, startMember(t, network, server.ID, ids, stores[i]))
	}
	leader(t, members...)
	inForce := func(m *member) (keys int64, hasPolicy bool) {
		m.View(func(machine *fsm.Machine) {
			s, _ := machine.Settings()
			keys, hasPolicy = s.Limits.Keys, s.Policy != nil
		})
		return keys, hasPolicy
	}
	testwait.Until(t, "all have offered", func() bool {
		for _, s := range stores {
			if data, _ := s.Offered.Load(); data == nil {
				return false
			}
		}
		return true
	})
	before, _ := stores[1].Offered.Load()
	wanted := DefaultConfig().Offer
	wanted.Settings.Limits.Keys = 77
	members[1].SetOffer(wanted)
	testwait.Until(t, "the setting is in force everywhere", func() bool {
		return !slices.ContainsFunc(members,
			func(m *member) bool { keys, _ := inForce(m); return keys != 77 })
	})
	testwait.Until(t, "it is remembered", func() bool {
		data, _ := stores[1].Offered.Load()
		return !bytes.Equal(data, before)
	})
	rules, err := policy.Compile(
		[]policy.Rule{{
			ClientIDs: []string{"a"},
			Resources: []policy.Resource{{Access: policy.Read, Keys: []string{"*"}}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	wanted = DefaultConfig().Offer // this node's setting is still the default
	wanted.Settings.Policy = rules
	members[2].SetOffer(wanted)
	testwait.Until(t, "the policy is in force everywhere", func() bool {
		return !slices.ContainsFunc(members,
			func(m *member) bool { _, hasPolicy := inForce(m); return !hasPolicy })
	})
	for i, m := range members {
		if keys, _ := inForce(m); keys != 77 {
			t.Errorf("%s: the policy brought back a limit of %d keys", ids[i].ID, keys)
		}
	}
}
