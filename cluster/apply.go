package cluster

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// replica is the state machine as raft sees it, and everybody's access to its state. It is the one place that applies.
type replica struct {
	node *Node

	mu      sync.RWMutex
	machine *fsm.Machine
	wall    int64         // the state's, after the last entry or the restore
	changed chan struct{} // closed and replaced after each entry

	hashes hashes
	halted atomic.Bool // an entry could not be applied: this replica stands still
}

func newReplica(node *Node) *replica {
	return &replica{node: node, machine: fsm.New(), changed: make(chan struct{})}
}

// Apply implements raft.FSM.
func (r *replica) Apply(log *raft.Log) any { return r.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch implements raft.BatchingFSM. Each response is an *fsm.Outcome, or an error.
func (r *replica) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	for i, log := range logs {
		if log.Type != raft.LogCommand {
			continue
		}
		outcome, err := r.apply(log)
		if err != nil {
			responses[i] = err
			continue
		}
		responses[i] = outcome
	}
	return responses
}

// ErrHalted says that this replica met an entry that it cannot apply.
var ErrHalted = errors.New("this node has stopped: it met a log entry that it cannot apply")

func (r *replica) apply(log *raft.Log) (*fsm.Outcome, error) {
	if r.halted.Load() {
		return nil, ErrHalted
	}
	start := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	outcome, err := r.machine.Apply(log.Index, log.Term, log.Data)
	if err != nil {
		r.halted.Store(true)
		r.node.world.Exit(fmt.Errorf("%w: %w", ErrHalted, err))
		return nil, err
	}
	status := r.machine.Status()
	r.hashes.note(log.Index, status.Hash)
	if status.Wall > r.wall {
		r.wall = status.Wall
		r.node.clock.carry(r.wall)
	}
	r.node.observe(outcome)
	close(r.changed)
	r.changed = make(chan struct{})
	r.node.world.Metrics.applied(outcome, time.Since(start))
	return outcome, nil
}

// view runs f with the state, beside other readers and never beside Apply.
func (r *replica) view(f func(*fsm.Machine)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	f(r.machine)
}

func (r *replica) status() (status fsm.Status) {
	r.view(func(m *fsm.Machine) { status = m.Status() })
	return status
}

// state returns the status, and a channel that is closed when it changes.
func (r *replica) state() (fsm.Status, <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.machine.Status(), r.changed
}

// Snapshot implements raft.FSM. It runs on the goroutine that applies, and captures the state; writing comes later.
func (r *replica) Snapshot() (raft.FSMSnapshot, error) {
	if r.halted.Load() {
		return nil, ErrHalted
	}
	return &persistedSnapshot{snapshot: r.capture(), done: r.node.log.ResetStored}, nil
}

func (r *replica) capture() *fsm.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Snapshot()
}

// Restore implements raft.FSM.
func (r *replica) Restore(snapshot io.ReadCloser) error {
	restored := fsm.New()
	err := restored.Restore(snapshot)
	if closeErr := snapshot.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machine, r.wall = restored, restored.Status().Wall
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

type persistedSnapshot struct {
	snapshot *fsm.Snapshot
	done     func()
}

// Persist implements raft.FSMSnapshot.
func (p *persistedSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := p.snapshot.Write(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("persist snapshot: %w", err)
	}
	p.done()
	return nil
}

// Release implements raft.FSMSnapshot.
func (p *persistedSnapshot) Release() {}
