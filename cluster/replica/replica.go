// Package replica is the state machine as raft sees it.
package replica

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

// Environment is all that a Replica touches outside of its own memory.
type Environment struct {
	// Applied is called after each entry, with the state locked.
	Applied func(outcome *fsm.EntryOutcome)
	// Restored is called when a snapshot has replaced the state, with the new state's status and
	// the state locked.
	Restored func(status fsm.Status)
	// ObserveApply is called after each entry, with the state locked. It gets the time to apply the
	// entry, the wait for the lock and Applied included.
	ObserveApply func(outcome *fsm.EntryOutcome, took time.Duration)
	// WallAdvanced is called with the state's cluster clock (Status.Wall) when an entry has moved
	// it forward, or when a restored snapshot has one: milliseconds since the Unix epoch. The state
	// is locked.
	WallAdvanced func(wall int64)
	// Monotonic is a clock that never goes back: the time since any fixed moment.
	Monotonic func() time.Duration
	// Pause waits for a duration between two writes of a snapshot. It returns early when the node
	// stops, or if so many bytes of log were applied since the last snapshot that this one must end
	// soon.
	Pause func(d time.Duration, bytesSinceSnapshot int64)
	// Exit ends the process: the state cannot be trusted any more. It may return, in a simulation.
	Exit func(error)
}

// Replica is the state machine of one member. Nothing else applies entries in a running node.
// Apply, ApplyBatch, Snapshot and Restore must not run at the same time: raft never calls two of
// them at once. All other methods are safe for concurrent use.
type Replica struct {
	env Environment

	mu      sync.RWMutex
	machine *fsm.Machine
	wall    int64         // cluster clock of the state after the last entry or restore
	changed chan struct{} // closed and replaced after each entry and each restore

	hashes hashes
	bytes  byteCount
	halted atomic.Bool // the state or the disk cannot be trusted any more
}

// New returns a replica with the empty state.
func New(env Environment) *Replica {
	return &Replica{env: env, machine: fsm.New(), changed: make(chan struct{})}
}

// Apply implements raft.FSM.
func (r *Replica) Apply(log *raft.Log) any { return r.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch implements raft.BatchingFSM. Each response is an *fsm.EntryOutcome, an error, or nil
// for an entry that is no command.
func (r *Replica) ApplyBatch(logs []*raft.Log) []any {
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

// ErrHalted says that this replica takes no more entries, because its state or its disk cannot be
// trusted.
var ErrHalted = errors.New("this node has stopped: its state or its disk cannot be trusted any more")

func (r *Replica) apply(log *raft.Log) (*fsm.EntryOutcome, error) {
	if r.halted.Load() {
		return nil, ErrHalted
	}
	start := r.env.Monotonic()
	r.mu.Lock()
	defer r.mu.Unlock()
	outcome, err := r.machine.Apply(log.Index, log.Term, log.Data)
	if err != nil {
		r.halted.Store(true)
		r.env.Exit(fmt.Errorf("%w: %w", ErrHalted, err))
		return nil, err
	}
	r.bytes.applied(len(log.Data))
	status := r.machine.Status()
	r.hashes.set(log.Index, status.Hash)
	if status.Wall > r.wall {
		r.wall = status.Wall
		r.env.WallAdvanced(r.wall)
	}
	r.env.Applied(outcome)
	close(r.changed)
	r.changed = make(chan struct{})
	r.env.ObserveApply(outcome, r.env.Monotonic()-start)
	return outcome, nil
}

// View runs f with the state read-locked. Other readers may run at the same time. Apply and Restore
// wait.
func (r *Replica) View(f func(*fsm.Machine)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	f(r.machine)
}

// Status returns the status of the state.
func (r *Replica) Status() (status fsm.Status) {
	r.View(func(m *fsm.Machine) { status = m.Status() })
	return status
}

// StatusAndChange returns the status, and a channel that is closed when the state changes next.
func (r *Replica) StatusAndChange() (fsm.Status, <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.machine.Status(), r.changed
}

// Snapshot implements raft.FSM. It runs on the goroutine that applies entries, and only captures
// the state. Persist writes it later.
func (r *Replica) Snapshot() (raft.FSMSnapshot, error) {
	if r.halted.Load() {
		return nil, ErrHalted
	}
	pace := func(w io.Writer) io.Writer {
		return &pacedWriter{
			w: w, now: r.env.Monotonic,
			pause: func(d time.Duration) { r.env.Pause(d, r.BytesSinceSnapshot()) },
			began: r.env.Monotonic(),
		}
	}
	return RaftSnapshot(r.Capture(), pace, r.bytes.beginSnapshot()), nil
}

// Capture returns the state as it is now; writing it comes later. The caller calls Release when
// that is done.
func (r *Replica) Capture() *fsm.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Snapshot()
}

// BytesSinceSnapshot returns the bytes of the entries that were applied and are in no written or
// restored snapshot.
func (r *Replica) BytesSinceSnapshot() int64 { return r.bytes.sinceSnapshot() }

// Halt makes the replica refuse all further entries, and take no more snapshots.
func (r *Replica) Halt() { r.halted.Store(true) }

// Hash returns the state's hash as it was after the entry at an index. The hashes after at least
// the last 16,384 entries are known, but not those of no-ops, configurations and entries that a
// snapshot replaced.
func (r *Replica) Hash(index uint64) (hash uint64, known bool) { return r.hashes.at(index) }

// Restore implements raft.FSM.
func (r *Replica) Restore(snapshot io.ReadCloser) error {
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
	r.bytes.beginSnapshot()()
	if r.wall != 0 {
		r.env.WallAdvanced(r.wall)
	}
	r.env.Restored(restored.Status())
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// RaftSnapshot adapts a captured state to raft.FSMSnapshot. Persist writes it through the writer
// that pace returns, and calls done if it succeeds.
func RaftSnapshot(snapshot *fsm.Snapshot, pace func(io.Writer) io.Writer,
	done func(),
) raft.FSMSnapshot {
	return &fsmSnapshot{snapshot: snapshot, pace: pace, done: done}
}

type fsmSnapshot struct {
	snapshot *fsm.Snapshot
	pace     func(io.Writer) io.Writer
	done     func()
}

// Persist implements raft.FSMSnapshot.
func (p *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := p.snapshot.Write(p.pace(sink)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("persist snapshot: %w", err)
	}
	p.done()
	return nil
}

// Release implements raft.FSMSnapshot.
func (p *fsmSnapshot) Release() { p.snapshot.Release() }

// hashes has the state's hash after each of at least the last 16,384 entries, so that replicas with
// different applied indexes can be compared at one index. No-ops, configurations and entries that a
// snapshot replaced have none. All methods are safe for concurrent use.
type hashes struct {
	mu    sync.Mutex
	slots [1 << 14]stateHash
}

type stateHash struct{ index, hash uint64 }

func (h *hashes) set(index, hash uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slots[index%uint64(len(h.slots))] = stateHash{index, hash}
}

// at returns the hash after the entry at an index. known is false if there is none.
func (h *hashes) at(index uint64) (hash uint64, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := h.slots[index%uint64(len(h.slots))]
	return found.hash, found.index == index
}
