package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/propose"
	"holdfast/cluster/readindex"
	"holdfast/fsm"
)

// newLeadership returns the leadership of a term that began at a monotonic time and a cluster time.
func (n *Node) newLeadership(term uint64, began time.Duration, start int64) *leadership {
	return &leadership{
		term: term,
		proposer: propose.New(n.config.Proposals, propose.World{
			Submit: n.submit, Status: n.replica.Status, Failed: n.failed, Monotonic: n.world.Clock.Monotonic, Wall: n.clock.now,
			StorageLow: func() bool { return n.diskLow() || n.peers.AnyDiskLow() }, Proposed: n.world.Metrics.proposed, Log: n.world.Log,
		}, propose.Leadership{Term: term, Began: began, Start: start}),
		reader: readindex.New(readindex.World{
			CommitIndex: n.raft.CommitIndex, Confirm: func(ctx context.Context) error { return n.confirm(ctx, term) }, LastCommand: n.log.LastCommand,
			State: n.replica.State, View: n.replica.View, Done: n.observer.ReadDone, Failed: func(tag any) { n.failed(tag, false) },
			Confirmed: n.world.Metrics.confirmed,
		}),
	}
}

// maintenance returns what looks after the cluster while this node leads.
func (n *Node) maintenance() *maintenance {
	return &maintenance{
		brokerSilence: n.observer.BrokerSilence, serving: n.serving, servers: n.servers, status: n.replica.Status, execute: n.Execute,
		raft: n.raft, peers: n.peers, members: n.members, log: n.world.Log,
	}
}

// submit hands an entry to raft. What it did is told when it is applied, that is, committed.
func (n *Node) submit(data []byte) raft.ApplyFuture {
	return n.raft.ApplyLog(raft.Log{Data: data}, 0) // 0: its timeout would only cover the queue
}

// watchLeadership begins a leadership whenever raft says that this node leads. What raft's channel says is a hint; the poll
// finds what the channel dropped.
func (n *Node) watchLeadership(ctx context.Context) {
	const poll = 50 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	said := ""
	for {
		if n.raft.State() != raft.Leader {
			said = ""
		} else if err := n.lead(ctx); err != nil && ctx.Err() == nil && err.Error() != said { // not at each attempt, while raft hands over
			said = err.Error()
			n.world.Log.Warn("leadership ended", "reason", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.raft.LeaderCh():
		case <-ticker.C:
		}
	}
}

// errStepDown says that raft took the leadership away.
var errStepDown = errors.New("raft no longer leads in this term")

// lead runs one leadership from its LeaderStart to its end.
func (n *Node) lead(ctx context.Context) error {
	nonce := n.world.Random()
	start := fsm.Entry{Commands: []fsm.Command{{Kind: fsm.KindLeaderStart, Nonce: nonce, Version: n.peers.AgreedVersion(fsm.Version, n.replica.Status().Version)}}}
	future := n.raft.ApplyLog(raft.Log{Data: fsm.AppendEntry(nil, &start)}, 0)
	if err := future.Error(); err != nil {
		return fmt.Errorf("propose LeaderStart: %w", err)
	}
	outcome, ok := future.Response().(*fsm.Outcome)
	if !ok {
		return fmt.Errorf("apply LeaderStart: %v", future.Response())
	}
	status := n.replica.Status()
	if status.LeaderNonce != nonce {
		return errStepDown
	}
	began := n.world.Clock.Monotonic()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := n.newLeadership(outcome.Term, began, status.Now)
	n.world.Log.Info("leading", "term", l.term)
	n.world.Metrics.leading(true)
	defer n.world.Metrics.leading(false)

	n.proposer.Store(l.proposer)
	defer n.proposer.Store(nil)
	n.health.Store(nil) // an earlier leadership's picture is none of this one's
	n.leadership.Store(l)
	defer n.leadership.CompareAndSwap(l, nil)
	var workers sync.WaitGroup
	for _, work := range []func(context.Context) error{
		l.proposer.Run, l.reader.Run, n.maintenance().run, n.runAutopilot,
		func(ctx context.Context) error { return n.watchTerm(ctx, l.term) },
		func(ctx context.Context) error { return n.serve(ctx, l) },
	} {
		workers.Go(func() {
			if err := work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// serve brings the cluster's settings in line and lets the front end serve.
func (n *Node) serve(ctx context.Context, l *leadership) error {
	if err := n.waitForClockQuorum(ctx); err != nil {
		return err
	}
	if err := n.offerer.Offer(ctx); err != nil {
		return err
	}
	err := n.observer.Serve(ctx, l.term)
	n.leadership.CompareAndSwap(l, nil)
	if err == nil {
		if err = context.Cause(ctx); err == nil {
			err = errors.New("the front end gave up")
		}
	}
	return err
}

// waitForClockQuorum waits until a majority of the voters has said what time it is: before, a leader could not judge any timestamp.
func (n *Node) waitForClockQuorum(ctx context.Context) error {
	const retry = 50 * time.Millisecond
	for n.clock.now() == 0 {
		if n.watch.noteAnswers(n.peers.Poll(ctx, n.config.Timing.Election)); n.clock.now() != 0 {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retry):
		}
	}
	return nil
}

// watchTerm ends the leadership when raft is no longer the leader of its term.
func (n *Node) watchTerm(ctx context.Context, term uint64) error {
	const poll = 20 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		if n.raft.State() != raft.Leader || n.raft.CurrentTerm() != term {
			return errStepDown
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
