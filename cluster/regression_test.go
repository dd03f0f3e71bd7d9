package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/cluster/peer"
	"holdfast/fsm"

	"github.com/hashicorp/raft"
)

// quitter is an Observer whose Serve returns an error when quit is closed.
type quitter struct {
	*recorder
	quit chan struct{}
}

func (q *quitter) Serve(ctx context.Context, term uint64) error {
	q.serving <- term
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-q.quit:
		return errors.New("the broker is gone")
	}
}

// † A command that is applied while the leadership ends is never reported as definitely not done.
func TestAppliedIsNeverReportedAsNotDone(t *testing.T) {
	q := &quitter{quit: make(chan struct{})}
	m := startMemberWith(t, NewNetwork(), "n1", servers("n1"), memoryStores(),
		func(r *recorder) Observer {
			q.recorder = r
			return q
		})
	<-q.serving
	slow, reading := make(chan struct{}), make(chan struct{})
	var viewing sync.WaitGroup
	viewing.Go(func() { // a reader locks the state, so that the entry is applied late
		m.replica.View(func(*fsm.Machine) {
			close(reading)
			<-slow
		})
	})
	<-reading
	last := m.raftForTest().LastIndex()
	ended := make(chan error, 1)
	go func() {
		_, err := m.Execute(context.Background(), set("k", "v"))
		ended <- err
	}()
	for m.raftForTest().LastIndex() == last {
		<-time.After(time.Millisecond)
	}
	close(q.quit)
	for m.leadsForTest() {
		<-time.After(time.Millisecond)
	}
	close(slow)
	viewing.Wait()
	if err := <-ended; errors.Is(err, peer.ErrNotDone) {
		t.Errorf("reported as not done; the key is there: %v", m.Status().State.Keys == 1)
	}
}

// Keys expire in time also after an Advance command has raised cluster time, here by an hour.
func TestKeysExpireInTimeAfterAnAdvance(t *testing.T) {
	n := leader(t, startCluster(t, 1)...)
	n.must(t, fsm.Command{
		Kind:  fsm.KindAdvance,
		Floor: fsm.Floor{Now: n.Status().State.Now + 3_600_000},
	})
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
	if took := time.Since(start); took > 500*time.Millisecond {
		t.Errorf("PX 100 expired after %v", took)
	}
}

// The leader is lost while it promotes a non-voter, and only some members have the new
// configuration. The remaining members elect a leader, whoever has it.
func TestHalfReplicatedPromotionAllowsAnElection(t *testing.T) {
	for name, test := range map[string]struct {
		members  []raft.ServerID
		promoted raft.ServerID
		// the members whose logs have the promotion, and those that still run
		knowing, left []raft.ServerID
		leader        raft.ServerID // the only one that can lead, or empty
	}{
		"it alone knows": {
			[]raft.ServerID{"n1", "n2", "n3"},
			"n3",
			[]raft.ServerID{"n3"},
			[]raft.ServerID{"n1", "n3"},
			"n3",
		},
		"it does not know": {
			[]raft.ServerID{"n1", "n2", "n3"},
			"n3",
			[]raft.ServerID{"n1"},
			[]raft.ServerID{"n1", "n3"},
			"n1",
		},
		"it does not know, of four": {
			[]raft.ServerID{"n1", "n2", "n3", "n4"},
			"n4",
			[]raft.ServerID{"n1", "n3"},
			[]raft.ServerID{"n1", "n3", "n4"},
			"",
		},
		"another does not know, of four": {
			[]raft.ServerID{"n1", "n2", "n3", "n4"},
			"n4",
			[]raft.ServerID{"n3", "n4"},
			[]raft.ServerID{"n1", "n3", "n4"},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := servers(test.members...)
			after := slices.Clone(before)
			before[slices.Index(test.members, test.promoted)].Suffrage = raft.Nonvoter
			network := NewNetwork()
			var members []*member
			for _, id := range test.left {
				stores := memoryStores()
				log := []*raft.Log{{
					Index: 1, Term: 1, Type: raft.LogConfiguration,
					Data: raft.EncodeConfiguration(raft.Configuration{Servers: before}),
				}}
				if slices.Contains(test.knowing, id) {
					log = append(log,
						&raft.Log{
							Index: 2, Term: 1, Type: raft.LogConfiguration,
							Data: raft.EncodeConfiguration(raft.Configuration{Servers: after}),
						})
				}
				if err := errors.Join(checked(t, stores.Log).StoreLogs(log),
					stores.Stable.SetUint64([]byte("CurrentTerm"), 1)); err != nil {
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
