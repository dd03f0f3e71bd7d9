package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/policy"
)

// quitter is an Observer whose Serve ends when it is told to.
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
	m := startMemberWith(t, NewNetwork(), "n1", servers("n1"), memoryStores(), func(r *recorder) Observer {
		q.recorder = r
		return q
	})
	<-q.serving
	r := newReply()
	m.replica.mu.RLock() // the state machine is a little slow
	last := m.raft.LastIndex()
	if !m.Propose(set("k", "v"), r) {
		t.Fatal("not taken up")
	}
	m.Flush()
	for m.raft.LastIndex() == last {
		<-time.After(time.Millisecond)
	}
	close(q.quit)
	for m.leadership.Load() != nil {
		<-time.After(time.Millisecond)
	}
	m.replica.mu.RUnlock()
	<-r.done
	if r.failed && !r.unknown {
		t.Errorf("reported as not done; the key is there: %v", m.replica.status().Keys == 1)
	}
}

// An entry is bounded by all that a client can put into a command, not only by its key and value.
func TestProposalSizeCountsEverything(t *testing.T) {
	big := strings.Repeat("x", 10_000)
	p := proposal{command: fsm.Command{
		Kind: fsm.KindSet, Key: []byte(big), Value: []byte(big), Expected: []byte(big),
		Timestamp: hlc.Timestamp{NodeID: big}, Token: hlc.Timestamp{NodeID: big},
		Principal: policy.Principal{ClientID: big, Username: big, Attributes: []policy.Attribute{{Name: big, Value: big}}},
		Rejected:  []fsm.Rejection{{ClientID: big}},
	}}
	encoded := len(fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{p.command}}))
	if size := p.size(); size < encoded-200 || size > encoded+1000 {
		t.Errorf("counted as %d bytes, encoded as %d", size, encoded)
	}
}

// After an Advance has raised cluster time, keys still expire in time.
func TestTicksAfterAdvance(t *testing.T) {
	n := leader(t, startCluster(t, 1)...)
	n.must(t, fsm.Command{Kind: fsm.KindAdvance, Floor: fsm.Floor{Now: n.replica.status().Now + 3_600_000}})
	command := set("k", "v")
	command.TTL = 100
	start := time.Now()
	n.must(t, command)
	for {
		status, changed := n.replica.state()
		if status.Keys == 0 {
			break
		}
		<-changed
	}
	if took := time.Since(start); took > 500*time.Millisecond {
		t.Errorf("PX 100 expired after %v", took)
	}
}
