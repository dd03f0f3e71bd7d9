package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/cluster/peer"
	"holdfast/cluster/propose"
	"holdfast/cluster/raftlog"
	"holdfast/cluster/readindex"
	"holdfast/cluster/replica"
	"holdfast/fsm"
)

// leaderLoop runs a leadership for each term in which this node is the raft leader.
type leaderLoop struct {
	clock      *clusterClock
	monotonic  func() time.Duration // of this process
	random     func() uint64
	metrics    *Metrics
	log        *slog.Logger
	serveTerm  func(ctx context.Context, term uint64) error   // Observer.Serve
	readDone   func(tag any, index uint64, result fsm.Result) // Observer.ReadDone
	proposals  propose.Config
	raft       *raft.Raft
	state      *replica.Replica
	storageLow func() bool // a majority of the voters has no space: what would grow is refused
	commands   *commandRouter
	raftLog    *raftlog.CheckedLog
	peers      *peer.Statuses
	// prepare are the functions that must succeed, in this order, before Observer.Serve is called.
	// An error ends the leadership.
	prepare []func(ctx context.Context) error
	// duties run from the start of the leadership to its end, also during prepare. An error ends
	// the leadership; nil does not.
	duties []func(ctx context.Context) error
}

// newLeadership returns the leadership of a term. startClusterTime is the cluster time of its
// LeaderStart, the log entry with which a leadership begins. startMonotonic is read shortly after
// the LeaderStart was applied. So cluster time may lag a little, and never runs ahead.
func (l *leaderLoop) newLeadership(term uint64, startMonotonic time.Duration,
	startClusterTime int64,
) *leadership {
	reads := readindex.Environment{
		CommitIndex: l.raft.CommitIndex,
		Confirm:     func(ctx context.Context) error { return l.commands.confirmTerm(ctx, term) },
		LastCommand: l.raftLog.LastCommand,
		State:       l.state.StatusAndChange, View: l.state.View, Done: l.readDone,
		Failed:           func(tag any) { l.commands.failed(tag, propose.NotDone) },
		ObserveReadIndex: l.metrics.observeReadIndex,
	}
	scans := reads
	scans.OneByOne = true
	return &leadership{
		term: term,
		proposer: propose.New(l.proposals, propose.Environment{
			Submit: l.submit, Status: l.state.Status, Failed: l.commands.failed,
			Monotonic: l.monotonic, ClusterClock: l.clock.now,
			StorageLow: l.storageLow, Proposed: l.metrics.observeEntry, Log: l.log,
		}, propose.Leadership{
			Term: term, StartMonotonic: startMonotonic,
			StartClusterTime: startClusterTime,
		}),
		reader: readindex.New(reads), scanner: readindex.New(scans),
	}
}

// submit proposes an entry to raft. The future completes when the state machine has applied the
// entry, or with an error.
func (l *leaderLoop) submit(data []byte) raft.ApplyFuture {
	// 0 is no timeout: raft's covers only the wait to enqueue
	return l.raft.ApplyLog(raft.Log{Data: data}, 0)
}

// run begins a leadership whenever this node is the raft leader. LeaderCh only wakes it up; State
// decides. The ticker retries when lead has failed although this node is still the raft leader.
func (l *leaderLoop) run(ctx context.Context) {
	const poll = 50 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	// reason of the last failure, which is logged once: during a leadership transfer each attempt
	// to begin fails for the same reason
	lastReason := ""
	for {
		if l.raft.State() != raft.Leader {
			lastReason = ""
		} else if began, err := l.lead(ctx); err != nil && ctx.Err() == nil &&
			(began || err.Error() != lastReason) {
			lastReason = err.Error()
			if began {
				l.log.Warn("leadership ended", "reason", err)
			} else {
				l.log.Warn("could not begin to lead", "reason", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-l.raft.LeaderCh():
		case <-ticker.C:
		}
	}
}

// errLeadershipLost says that this node is no longer the raft leader of the term.
var errLeadershipLost = errors.New("this node is no longer the raft leader of the term")

// lead runs one leadership from its LeaderStart to its end. began says that its LeaderStart was
// applied, and was the newest one in the state after that.
func (l *leaderLoop) lead(ctx context.Context) (began bool, reason error) {
	nonce := l.random()
	startEntry := fsm.Entry{Commands: []fsm.Command{{
		Kind: fsm.KindLeaderStart, Nonce: nonce,
		Version: l.peers.AgreedVersion(fsm.Version, l.state.Status().Version),
	}}}
	future := l.raft.ApplyLog(raft.Log{Data: fsm.AppendEntry(nil, &startEntry)}, 0)
	if err := future.Error(); err != nil {
		return false, fmt.Errorf("propose LeaderStart: %w", err)
	}
	outcome, ok := future.Response().(*fsm.EntryOutcome)
	if !ok {
		return false, fmt.Errorf("apply LeaderStart: %v", future.Response())
	}
	status := l.state.Status()
	if status.LeaderNonce != nonce {
		return false, errLeadershipLost
	}
	start := l.monotonic()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	current := l.newLeadership(outcome.Term, start, status.Now)
	l.log.Info("leading", "term", current.term)
	l.metrics.setLeading(true)
	defer l.metrics.setLeading(false)

	l.commands.begin(current)
	defer l.commands.end(current)
	var workers sync.WaitGroup
	for _, work := range slices.Concat(l.duties, []func(context.Context) error{
		current.proposer.Run, current.reader.Run, current.scanner.Run,
		func(ctx context.Context) error { return l.watchTerm(ctx, current.term) },
		func(ctx context.Context) error { return l.serve(ctx, current) },
	}) {
		workers.Go(func() {
			if err := work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	workers.Wait()
	return true, context.Cause(ctx)
}

// serve runs prepare, and then Observer.Serve until the leadership ends.
func (l *leaderLoop) serve(ctx context.Context, current *leadership) error {
	for _, prepare := range l.prepare {
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	err := l.serveTerm(ctx, current.term)
	l.commands.stopAccepting(current)
	if err == nil {
		if err = context.Cause(ctx); err == nil {
			err = errors.New("Observer.Serve returned early without an error")
		}
	}
	return err
}

// watchTerm returns errLeadershipLost when this node is no longer the raft leader in the term.
func (l *leaderLoop) watchTerm(ctx context.Context, term uint64) error {
	const poll = 20 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		if l.raft.State() != raft.Leader || l.raft.CurrentTerm() != term {
			return errLeadershipLost
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
