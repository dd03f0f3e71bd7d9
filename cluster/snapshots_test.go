package cluster

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/internal/testwait"
)

// A snapshot is due when the log since the last one is as large as that snapshot. The bounds are
// Config.SnapshotBytes (here 100 bytes) and four times that: a small state is not written for each
// little log, and a start does not apply a long one.
func TestLogBeforeASnapshotFollowsTheSizeOfTheLast(t *testing.T) {
	for name, test := range map[string]struct{ newest, want int64 }{
		"no snapshot": {0, 100}, "a small state": {99, 100}, "a state of some size": {250, 250},
		"a large state": {4000, 400},
	} {
		t.Run(name, func(t *testing.T) {
			if got := logBeforeSnapshot(100, test.newest); got != test.want {
				t.Errorf("%d bytes", got)
			}
		})
	}
}

// What an earlier process wrote to the log counts, so that a node that restarts often takes
// snapshots, too.
func TestLogFromBeforeARestartCountsForTheSnapshot(t *testing.T) {
	stores := memoryStores()
	for round, bytes := range []int{8_000, 4_000} {
		t.Run(fmt.Sprintf("bytes %v", bytes), func(t *testing.T) {
			m := startMember(t, NewNetwork(), "n1", servers("n1"), stores,
				func(c *Config, _ *Environment) { c.SnapshotBytes, c.TrailingEntries = 10_000, 1 })
			leader(t, m).must(t, set("k", string(make([]byte, bytes))))
			if round == 1 {
				testwait.Until(t, "a snapshot is taken", func() bool {
					list, err := stores.Snapshots.List()
					return err == nil && len(list) > 0
				})
			}
			if err := m.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestSnapshotIsTakenByLogSize(t *testing.T) {
	stores := memoryStores()
	m := startMember(t, NewNetwork(), "n1", servers("n1"), stores,
		func(c *Config, _ *Environment) { c.SnapshotBytes, c.TrailingEntries = 10_000, 1 })
	n := leader(t, m)
	for deadline := time.Now().Add(20 * time.Second); ; {
		n.must(t, set("k", string(make([]byte, 5_000))))
		list, err := stores.Snapshots.List()
		if err != nil {
			t.Fatal(err)
		}
		if first, err := stores.Log.FirstIndex(); err == nil && first > 3 && len(list) > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no snapshot was taken, or the log was not cut")
		}
	}
}

func TestSavedSnapshotHasTheState(t *testing.T) {
	n := leader(t, startCluster(t, 1)...)
	n.must(t, set("k", "v"))
	var saved bytes.Buffer
	index, err := n.Snapshots().Save(&saved)
	if err != nil || index == 0 {
		t.Fatal(index, err)
	}
	m := fsm.New()
	if err := m.Restore(&saved); err != nil || m.Status().Keys != 1 || m.Status().Index != index {
		t.Fatalf("%+v, %v", m.Status(), err)
	}
}
