package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

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
	return true
}

// flush has what is queued read.
func (r *reader) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
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
		if r.node.log.LastCommand(commit, status.Index) <= status.Index {
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
