package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// reading is a read that waits.
type reading struct {
	command *fsm.Command
	tag     any
}

// reader answers reads by read index: note the commit index, confirm the leadership, wait until the state machine is there,
// read. One round serves all reads that wait. It belongs to one leadership.
type reader struct {
	node *Node
	term uint64

	mu     sync.Mutex
	queue  []reading
	closed bool
	wake   chan struct{}
}

func newReader(node *Node, term uint64) *reader {
	return &reader{node: node, term: term, wake: make(chan struct{}, 1)}
}

func (r *reader) add(command *fsm.Command, tag any) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.queue = append(r.queue, reading{command, tag})
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return true
}

// run answers until the context ends or leadership cannot be confirmed, and gives back what it did not answer.
func (r *reader) run(ctx context.Context) error {
	var err error
	var waiting []reading
	for err == nil {
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
			continue
		case <-r.wake:
		}
		r.mu.Lock()
		waiting, r.queue = r.queue, nil
		r.mu.Unlock()
		if len(waiting) == 0 {
			continue
		}
		if err = r.settle(ctx); err == nil {
			r.answer(waiting)
			waiting = nil
		}
	}
	r.mu.Lock()
	r.closed = true
	waiting = append(waiting, r.queue...)
	r.queue = nil
	r.mu.Unlock()
	for i := range waiting {
		r.node.failed(waiting[i].tag, false)
	}
	return err
}

// settle returns when the state holds everything that was committed before the call. An entry of this term is committed: its
// LeaderStart.
func (r *reader) settle(ctx context.Context) error {
	start := time.Now()
	commit := r.node.raft.CommitIndex()
	if err := r.node.confirm(ctx, r.term); err != nil {
		return err
	}
	for {
		status, changed := r.node.replica.state()
		if r.node.log.lastCommand(commit, status.Index) <= status.Index {
			r.node.world.Metrics.confirmed(time.Since(start))
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

func (r *reader) answer(waiting []reading) {
	r.node.replica.view(func(m *fsm.Machine) {
		index := m.Status().Index
		for i := range waiting {
			r.node.readDone(waiting[i].tag, index, m.Read(waiting[i].command))
		}
	})
}

// ErrUnconfirmed says that a majority did not confirm the leadership.
var ErrUnconfirmed = fmt.Errorf("%w: no majority confirmed it", ErrNotLeader)

// confirm asks the voters whether the term is still the newest that they know. It returns nil when a majority, this node
// included, answered so to a question that was sent after the call: whoever leads in a later term was voted for by a
// majority, a vote raises the term before it is given, and majorities intersect.
func (n *Node) confirm(ctx context.Context, term uint64) error {
	future := n.raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	ctx, cancel := context.WithTimeout(ctx, n.config.Timing.Election)
	defer cancel()
	var others []raft.Server
	voters, agreed := 0, 0
	for _, server := range future.Configuration().Servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		if server.ID == n.config.ID {
			if n.raft.CurrentTerm() == term {
				agreed++
			}
			continue
		}
		others = append(others, server)
	}
	if agreed == 0 {
		return ErrUnconfirmed
	}
	answers := make(chan bool, len(others))
	for _, server := range others {
		n.workers.Go(func() { // ends with the context at the latest, so nobody waits for it here
			answer, err := n.ask(ctx, server)
			answers <- err == nil && answer.term <= term
		})
	}
	for range others {
		if agreed > voters/2 {
			return nil
		}
		select {
		case yes := <-answers:
			if yes {
				agreed++
			}
		case <-ctx.Done():
			return ErrUnconfirmed
		}
	}
	if agreed > voters/2 {
		return nil
	}
	return ErrUnconfirmed
}
