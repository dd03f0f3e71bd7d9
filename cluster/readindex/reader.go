// Package readindex answers reads by read index (§6.4 of the Raft dissertation).
package readindex

import (
	"context"
	"sync"
	"time"

	"holdfast/fsm"
)

// reading is a read that waits.
type reading struct {
	command *fsm.Command
	tag     any
}

// Environment is all that a Reader touches outside of its own memory. The functions are safe for concurrent use.
type Environment struct {
	// CommitIndex returns raft's.
	CommitIndex func() uint64
	// Confirm returns nil when this node led, in the term of the leadership, at some moment after the call.
	Confirm func(ctx context.Context) error
	// LastCommand returns the index of the last command in the log up to commit. If it knows none after applied, the result is at most applied.
	// The state machine never sees no-ops and configurations, so a read must not wait for commit itself.
	LastCommand func(commit, applied uint64) uint64
	// State returns the state's status, and a channel that is closed when it changes.
	State func() (fsm.Status, <-chan struct{})
	// View runs a function with the state.
	View func(func(*fsm.Machine))
	// Done answers a read with the state as it is after the entry at an index. The state is locked.
	Done func(tag any, index uint64, result fsm.Result)
	// Failed gives back the tag of a read that was not answered.
	Failed func(tag any)
	// OneByOne locks the state for each read anew, and pauses after it for as long as the read took, so that entries are applied in between. Otherwise
	// the state is locked once for all reads that wait.
	OneByOne bool
	// Ready is called once a round, with the time that it took to confirm the leadership and to apply up to the read index.
	Ready func(took time.Duration)
}

// Reader answers reads by read index: note the commit index, confirm the leadership, wait until the state machine is there,
// read. One round serves all reads that wait. It belongs to one leadership. All methods are safe for concurrent use.
type Reader struct {
	env Environment

	mu     sync.Mutex
	queue  []reading
	closed bool
	wake   chan struct{}
}

// New returns a reader of a leadership. Run makes it answer.
func New(env Environment) *Reader { return &Reader{env: env, wake: make(chan struct{}, 1)} }

// Add queues a read and reports whether the leadership still takes any.
func (r *Reader) Add(command *fsm.Command, tag any) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.queue = append(r.queue, reading{command, tag})
	return true
}

// Flush wakes Run, which answers the queued reads.
func (r *Reader) Flush() {
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

// Run answers until the context ends or leadership cannot be confirmed, and gives back what it did not answer.
func (r *Reader) Run(ctx context.Context) error {
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
		if err = r.await(ctx); err == nil {
			if waiting = r.answer(ctx, waiting); len(waiting) > 0 {
				err = context.Cause(ctx)
			}
		}
	}
	r.mu.Lock()
	r.closed = true
	waiting = append(waiting, r.queue...)
	r.queue = nil
	r.mu.Unlock()
	for i := range waiting {
		r.env.Failed(waiting[i].tag)
	}
	return err
}

// await returns when the state holds everything that was committed before the call. An entry of this term is committed: its
// LeaderStart.
func (r *Reader) await(ctx context.Context) error {
	start := time.Now()
	commit := r.env.CommitIndex()
	if err := r.env.Confirm(ctx); err != nil {
		return err
	}
	for {
		status, changed := r.env.State()
		if r.env.LastCommand(commit, status.Index) <= status.Index {
			r.env.Ready(time.Since(start))
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// answer answers reads, and returns those that it did not get to before the context ended.
func (r *Reader) answer(ctx context.Context, waiting []reading) (left []reading) {
	if !r.env.OneByOne {
		r.answerTogether(waiting)
		return nil
	}
	for i := range waiting {
		if ctx.Err() != nil {
			return waiting[i:]
		}
		began := time.Now()
		r.answerTogether(waiting[i : i+1])
		pause(ctx, time.Since(began))
	}
	return nil
}

func (r *Reader) answerTogether(waiting []reading) {
	r.env.View(func(m *fsm.Machine) {
		index := m.Status().Index
		for i := range waiting {
			r.env.Done(waiting[i].tag, index, m.Read(waiting[i].command))
		}
	})
}

// pause waits for a time, or until the context ends.
func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}
