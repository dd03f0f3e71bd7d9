package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
	"holdfast/fsm"
	"holdfast/internal/testwait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSingleNodeServesCommands(t *testing.T) {
	n := leader(t, startCluster(t, 1)...)
	if r := n.must(t, set("k", "v")); r.Code != fsm.CodeOK {
		t.Fatalf("%+v", r)
	}
	if value, err := n.get("k"); value != "v" || err != nil {
		t.Fatalf("%q, %v", value, err)
	}
	status := n.Status()
	if status.Role != "leader" || !status.Serving || status.State.Keys != 1 ||
		!status.State.Configured {
		t.Errorf("%+v", status)
	}
}

func TestThreeNodesAgree(t *testing.T) {
	members := startCluster(t, 3)
	n := leader(t, members...)
	var wait sync.WaitGroup
	for i := range 300 {
		r := newReply()
		if !n.Propose(set(fmt.Sprint("k", i%7), fmt.Sprint(i)), r) {
			t.Fatal("Propose returned false")
		}
		wait.Go(func() { <-r.done })
	}
	n.Flush()
	wait.Wait()
	if value, err := n.get("k5"); value != "299" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
	want := n.Status().State
	for _, m := range members {
		for m.Status().State.Index < want.Index {
			_, changed := m.replica.StatusAndChange()
			<-changed
		}
		m.recorder.mu.Lock()
		entries := len(m.recorder.outcomes)
		m.recorder.mu.Unlock()
		if entries == 0 || m.Status().State.Keys != 7 {
			t.Errorf("%s: %d entries, %+v", m.ID(), entries, m.Status().State)
		}
	}
	testwait.Until(t, "all members have one index, and then one hash", func() bool {
		states := make([]fsm.Status, len(members))
		for i, m := range members {
			states[i] = m.Status().State
		}
		if states[0].Index != states[1].Index || states[1].Index != states[2].Index {
			return false
		}
		if states[0].Hash != states[1].Hash || states[1].Hash != states[2].Hash {
			t.Errorf("%+v", states)
		}
		return true
	})
}

// Commands are batched: while an entry is on its way, the next one gathers.
func TestCommandsGatherWhileAnEntryIsInFlight(t *testing.T) {
	n := leader(t, startCluster(t, 1)...)
	before := n.raftForTest().LastIndex()
	replies := make([]*reply, 2000)
	for i := range replies {
		replies[i] = newReply()
		n.Propose(set("k", "v"), replies[i])
	}
	n.Flush()
	last := uint64(0)
	for _, r := range replies {
		<-r.done
		if r.index < last {
			t.Fatal("out of order")
		}
		last = r.index
	}
	if entries := n.raftForTest().LastIndex() - before; entries > 1000 {
		t.Errorf("%d entries for 2000 commands", entries)
	}
}

// gatedLog is a log whose disk can be held up.
type gatedLog struct {
	raft.LogStore
	gate    sync.Mutex
	waiting atomic.Int32
}

func (l *gatedLog) StoreLogs(logs []*raft.Log) error {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	l.gate.Lock()
	defer l.gate.Unlock()
	return l.LogStore.StoreLogs(logs)
}

// A write with an identity (a request id for deduplication) is refused if it waited longer than
// ProposalAge and the dedup table does not have its outcome. It may be a copy of a write whose
// outcome was forgotten, because the leader's disk hung for longer than outcomes are remembered.
func TestWriteThatWaitedForTooLongIsRefused(t *testing.T) {
	var disk *gatedLog
	n := leader(t, startCluster(t, 1, func(c *Config, w *Environment) {
		disk = &gatedLog{LogStore: w.Stores.Log}
		w.Stores.Log, c.Proposals.ProposalAge, c.Proposals.MinPipelined = disk, 20*time.Millisecond,
			1000
	})...)
	numbered := func(id byte) fsm.Command {
		command := set("k", "v")
		command.ID[0] = id
		return command
	}
	n.must(t, numbered(1))
	disk.gate.Lock()
	replies := make([]*reply, 4)
	for i, command := range []fsm.Command{set("k", "v"), numbered(1), numbered(2), set("k", "v")} {
		replies[i] = newReply()
		n.Propose(command, replies[i])
		n.Flush()
		testwait.Until(t, "the first one is on its way to the disk",
			func() bool { return disk.waiting.Load() > 0 })
	}
	<-time.After(50 * time.Millisecond)
	disk.gate.Unlock()
	for _, r := range replies {
		<-r.done
	}
	if r := replies[1].result; r.Code != fsm.CodeOK || !r.Repeat {
		t.Errorf("a copy whose outcome is known: %+v", r)
	}
	if r := replies[2].result; r.Code != fsm.CodeNoReply {
		t.Errorf("one that waited: %+v", r)
	}
	if r := replies[3].result; r.Code != fsm.CodeOK {
		t.Errorf("one without an id, which takes effect as often as it arrives: %+v", r)
	}
}

// A key expires in time without any traffic.
func TestIdleKeyExpiresInTime(t *testing.T) {
	n := leader(t, startCluster(t, 1)...)
	command := set("k", "v")
	command.TTL = 100
	start := time.Now()
	n.must(t, command)
	for {
		status, changed := n.replica.StatusAndChange()
		if status.Keys == 0 {
			break
		}
		<-changed
	}
	if took := time.Since(start); took < 100*time.Millisecond || took > 400*time.Millisecond {
		t.Errorf("expired after %v", took)
	}
}

func TestLeadershipTransferKeepsTheState(t *testing.T) {
	members := startCluster(t, 3)
	first := leader(t, members...)
	first.must(t, set("k", "v"))
	if err := first.transferForTest(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	second := leader(t, members...)
	if second == first {
		t.Fatal("still the same leader")
	}
	if value, err := second.get("k"); value != "v" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
	second.must(t, set("k", "w"))
	if _, err := first.get("k"); !errors.Is(err, peer.ErrNotLeader) &&
		!errors.Is(err, peer.ErrNotDone) {
		t.Errorf("the old leader answers: %v", err)
	}
}

// † The leader's own wrong clock does not move the cluster clock, and the node says that it is
// wrong.
func TestClusterClockIsTheMedian(t *testing.T) {
	members := startCluster(t, 3)
	n := leader(t, members...)
	for name, wrong := range map[string]int64{"ahead": 120_000, "behind": -120_000} {
		t.Run(name, func(t *testing.T) {
			n.wall.mu.Lock()
			n.wall.offset = wrong
			n.wall.mu.Unlock()
			testwait.Until(t, "a poll has seen the wrong clock", func() bool {
				off, err := n.ClockOffset()
				return err != nil && (off > 0) == (wrong > 0)
			})
			if off := n.ClusterClock() - time.Now().UnixMilli(); off > 1000 || off < -1000 {
				t.Errorf("the leader's clock is off by %d ms, the cluster's by %d ms", wrong, off)
			}
		})
	}
}

// A node with a store that was closed and opened again has everything, from the log and from
// snapshots.
func TestRestartKeepsEverything(t *testing.T) {
	for _, kind := range []raftlog.Kind{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(kind), func(t *testing.T) { testRestart(t, kind) })
	}
}

func testRestart(t *testing.T, kind raftlog.Kind) {
	dir := t.TempDir()
	for round := range 3 {
		stores, err := raftlog.OpenStores(dir, kind, quiet())
		if err != nil {
			t.Fatal(err)
		}
		m := startMember(t, NewNetwork(), "n1", servers("n1"), stores)
		n := leader(t, m)
		for i := range round {
			if value, err := n.get(fmt.Sprint("k", i)); value != "v" || err != nil {
				t.Fatalf("round %d: %q, %v", round, value, err)
			}
		}
		n.must(t, set(fmt.Sprint("k", round), "v"))
		if round == 1 {
			if err := n.Snapshots().Create(); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSettingsAreOfferedOnce(t *testing.T) {
	stores := memoryStores()
	keys := func(n int64) func(*Config, *Environment) {
		return func(c *Config, _ *Environment) { c.Offer.Settings.Limits.Keys = n }
	}
	inForce := func(n *member) (limit int64) {
		n.View(func(m *fsm.Machine) { s, _ := m.Settings(); limit = s.Limits.Keys })
		return limit
	}
	m := startMember(t, NewNetwork(), "n1", servers("n1"), stores, keys(5))
	n := leader(t, m)
	if inForce(n) != 5 {
		t.Fatal("not offered at the first start")
	}
	other := fsm.DefaultSettings()
	other.Limits.Keys = 7 // as another node would have set it
	n.must(t, fsm.Command{Kind: fsm.KindConfigure, Settings: &other})
	_ = m.Close(t.Context())
	m = startMember(t, NewNetwork(), "n1", nil, stores, keys(5))
	if n = leader(t, m); inForce(n) != 7 {
		t.Fatal("a leader brought back its older settings")
	}
	offer := DefaultConfig().Offer
	offer.Settings.Limits.Keys = 9
	n.SetOffer(offer)
	for inForce(n) != 9 {
		_, changed := n.replica.StatusAndChange()
		if inForce(n) == 9 {
			break
		}
		<-changed
	}
}

// A data folder keeps its raft id for as long as it has a log, and gets a new one without a log. It
// is refused under another node or cluster name.
func TestIdentityBelongsToItsLog(t *testing.T) {
	dir := t.TempDir()
	first, err := LoadIdentity(dir, "holdfast", "n1", 7)
	if err != nil {
		t.Fatal(err)
	}
	if first.RaftID() != "n1.0000000000000007" || peer.NodeName(first.RaftID()) != "n1" {
		t.Errorf("%s", first.RaftID())
	}
	if other, err := LoadIdentity(dir, "holdfast", "n1", 9); other == first || err != nil {
		t.Errorf("without a log the id is used again: %v, %v", other, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "raft.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first, _ = LoadIdentity(dir, "holdfast", "n1", 9)
	if again, err := LoadIdentity(dir, "holdfast", "n1", 8); again != first || err != nil {
		t.Errorf("%v, %v", again, err)
	}
	if _, err := LoadIdentity(dir, "holdfast", "n2", 8); !errors.Is(err, ErrForeignData) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(filepath.Join(dir, "raft.db")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIdentity(dir, "other", "n1", 8); !errors.Is(err, ErrForeignData) {
		t.Errorf("without a log: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "raft.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIdentity(dir, "holdfast", "n1", 8); err == nil {
		t.Error("a broken identity was accepted")
	}
	if err := os.Remove(filepath.Join(dir, "identity.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIdentity(dir, "holdfast", "n1", 8); !errors.Is(err, ErrNoIdentity) {
		// a single node with a new id could never lead again
		t.Errorf("a log without an identity: %v", err)
	}
}

func TestConfigErrorsNameFieldAndReason(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`cluster config: ID is "": must not be empty`: func(c *Config) { c.ID = "" },
		"Proposals.InFlight is 0":                     func(c *Config) { c.Proposals.InFlight = 0 },
		"Proposals.BatchBytes is -1": func(
			c *Config,
		) {
			c.Proposals.BatchBytes = -1
		},
		"Timing.LeaderLease is 1h0m0s": func(
			c *Config,
		) {
			c.Timing.LeaderLease = time.Hour
		},
		"Timing.Election is 1ms": func(
			c *Config,
		) {
			c.Timing.Election = time.Millisecond
		},
	} {
		t.Run(want, func(t *testing.T) {
			config := DefaultConfig()
			config.ID = "n1"
			if err := config.Validate(); err != nil {
				t.Fatal(err)
			}
			change(&config)
			if err := config.Validate(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v", err)
			}
		})
	}
}
