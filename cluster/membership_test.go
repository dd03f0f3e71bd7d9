package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/fsm"
	"holdfast/internal/testwait"
)

// Unsafe changes of the membership, unsafe leadership transfers, and calls of strangers are
// refused.
func TestUnsafeMembershipChangesAreRefused(t *testing.T) {
	network := NewNetwork()
	n := leader(t, startMember(t, network, "n1", servers("n1"), memoryStores()))
	testwait.Until(t, "the version is in force",
		func() bool { return n.Status().State.Version == fsm.Version })
	leader(t, startMember(t, network, "m1", servers("m1"), memoryStores()))
	if err := n.Membership().Add(t.Context(), "m1", true); !errors.Is(err, peer.ErrRefused) {
		t.Errorf("a node with a cluster of its own: %v", err)
	}
	fresh := startMember(t, network, "n2", nil, memoryStores())
	old := []byte(`{"id":"n2","address":"n2","version":0}`)
	if _, err := n.Handle(t.Context(), peer.Caller{ID: "n1"}, peer.MethodJoin, old); !errors.Is(err,
		peer.ErrRefused) {
		t.Errorf("an old node: %v", err)
	}
	stranger := peer.Caller{Certified: func(names ...string) bool { return false }}
	join := fmt.Appendf(nil, `{"id":"n2","address":"n2","version":%d}`, fsm.Version)
	if _, err := n.Handle(t.Context(), stranger, peer.MethodJoin, join); !errors.Is(err,
		peer.ErrRefused) {
		t.Errorf("without its certificate: %v", err)
	}
	if _, err := n.Handle(t.Context(), stranger, peer.MethodHash, nil); !errors.Is(err,
		peer.ErrRefused) {
		t.Errorf("a stranger as a member: %v", err)
	}
	if err := n.Membership().Add(t.Context(), "n2", false); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it has applied an entry",
		func() bool { return fresh.Status().State.Index > 0 })
	if err := n.transferForTest(t.Context(), "n2"); !errors.Is(err, peer.ErrRefused) {
		t.Errorf("the leadership to a non-voter: %v", err)
	}
	if err := n.Membership().Remove(t.Context(), "nobody"); !errors.Is(err, peer.ErrRefused) {
		t.Errorf("removed nobody: %v", err)
	}
	if err := n.Membership().Add(t.Context(), "n2", true); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it votes", func() bool {
		server, ok := peer.Find(n.serversForTest(), "n2")
		return ok && server.Suffrage == raft.Voter
	})
	if err := n.Membership().Add(t.Context(), "n2", false); !errors.Is(err, peer.ErrRefused) {
		t.Errorf("a voter, as a non-voter: %v", err)
	}
	fresh.raftForTest().Shutdown()
	// n1 may have lost the leadership already, because n2 does not answer.
	if err := n.Membership().Remove(t.Context(), "n1"); !errors.Is(err, peer.ErrRefused) &&
		(!errors.Is(err, peer.ErrNotLeader) || n.Status().Role == raft.Leader.String()) {
		t.Errorf("removed the only live voter of two: %v", err)
	}
}

// A snapshot succeeds right after a membership change. Raft refuses one while the newest
// configuration is not applied. It counts as applied, because raft gives configurations, too, to a
// raft.BatchingFSM.
func TestSnapshotSucceedsRightAfterAMembershipChange(t *testing.T) {
	network := NewNetwork()
	n := leader(t, startMember(t, network, "n1", servers("n1"), memoryStores()))
	testwait.Until(t, "the version is in force",
		func() bool { return n.Status().State.Version == fsm.Version })
	for _, id := range []raft.ServerID{"n2", "n3", "n4"} {
		// three attempts: if another entry follows the change, an attempt proves nothing
		startMember(t, network, id, nil, memoryStores())
		if err := n.Membership().Add(t.Context(), raft.ServerAddress(id), true); err != nil {
			t.Fatal(err)
		}
		if err := n.Snapshots().Create(); err != nil {
			t.Error(err)
		}
	}
}

// Autopilot acts on a state of the members that may be a second old. It does not add a non-voter
// again that was removed since.
func TestRemovedNonVoterStaysOut(t *testing.T) {
	network := NewNetwork()
	n := leader(t, startMember(t, network, "n1", servers("n1"), memoryStores()))
	testwait.Until(t, "the version is in force",
		func() bool { return n.Status().State.Version == fsm.Version })
	fresh := startMember(t, network, "n2", nil, memoryStores())
	if err := n.Membership().Add(t.Context(), "n2", false); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it has applied an entry",
		func() bool { return fresh.Status().State.Index > 0 })
	// autopilot knows it as a healthy non-voter
	<-time.After(stabilizationTime + 2*peer.PollInterval)
	if err := n.Membership().Remove(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 3*peer.PollInterval; <-time.After(
		10 * time.Millisecond) {
		if _, member := peer.Find(n.serversForTest(), "n2"); member {
			t.Fatal("it is a member again")
		}
	}
}
