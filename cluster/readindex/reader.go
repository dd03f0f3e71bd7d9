// Package readindex answers reads by read index (§6.4 of the Raft dissertation).
package readindex

import (
	"context"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/internal/backoff"
)

// pendingRead is a read that is not answered yet.
type pendingRead struct {
	command *fsm.Command
	tag     any
}

// Environment has what a Reader uses of its node. The functions are safe for concurrent use.
type Environment struct {
	// CommitIndex returns raft's commit index.
	CommitIndex func() uint64
	// Confirm returns nil if this node was still the leader, in the term of the leadership, at some
	// moment after the call began.
	Confirm func(ctx context.Context) error
	// LastCommand returns the index of the last command up to commit. If there is no command after
	// applied, it may return any index up to applied. No-ops and configurations do not change the
	// applied index, so a read waits for the last command and not for commit.
	LastCommand func(commit, applied uint64) uint64
	// State returns the state's status, and a channel that is closed when the state changes next.
	State func() (fsm.Status, <-chan struct{})
	// View runs a function with the state read-locked.
	View func(func(*fsm.Machine))
	// Done is called with the result of a read, and the applied index at which it was read. The
	// state is read-locked.
	Done func(tag any, index uint64, result fsm.Result)
	// Failed is called with the tag of a read that gets no answer.
	Failed func(tag any)
	// OneByOne makes the Reader release the lock of the state after each read, and pause for as
	// long as the read took, the wait for the lock included. Entries can then be applied in
	// between. If it is false, the state is locked once for all reads of a round.
	OneByOne bool
	// ObserveReadIndex is called once in each round that reaches its read index. took is the time
	// to confirm the leadership and to apply entries up to the read index.
	ObserveReadIndex func(took time.Duration)
}

// Reader answers reads by read index. A round takes the commit index, confirms the leadership,
// waits until that index is applied, and reads. One round serves all reads that are queued when it
// begins. A Reader belongs to one leadership. Run is called once. Add and Flush are safe for
// concurrent use.
type Reader struct {
	env Environment

	mu     sync.Mutex
	queue  []pendingRead
	closed bool
	wake   chan struct{}
}

// New returns a Reader for one leadership. Run answers the reads.
func New(env Environment) *Reader { return &Reader{env: env, wake: make(chan struct{}, 1)} }

// Add queues a read, which is answered after the next Flush. It returns false after Run has ended.
func (r *Reader) Add(command *fsm.Command, tag any) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.queue = append(r.queue, pendingRead{command, tag})
	return true
}

// Flush wakes Run if reads are queued.
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

// Run answers reads until the context ends or the leadership cannot be confirmed. Then it calls
// Failed for each read that is left.
func (r *Reader) Run(ctx context.Context) error {
	var err error
	var reads []pendingRead
	for err == nil {
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
			continue
		case <-r.wake:
		}
		r.mu.Lock()
		reads, r.queue = r.queue, nil
		r.mu.Unlock()
		if len(reads) == 0 {
			continue
		}
		if err = r.awaitReadIndex(ctx); err == nil {
			if reads = r.answer(ctx, reads); len(reads) > 0 {
				err = context.Cause(ctx)
			}
		}
	}
	r.mu.Lock()
	r.closed = true
	reads = append(reads, r.queue...)
	r.queue = nil
	r.mu.Unlock()
	for i := range reads {
		r.env.Failed(reads[i].tag)
	}
	return err
}

// awaitReadIndex returns when the state has every command that was committed before the call. The
// commit index is current, as §6.4 demands: an entry of this term, its LeaderStart, was committed
// before this Reader was made.
func (r *Reader) awaitReadIndex(ctx context.Context) error {
	start := time.Now()
	commit := r.env.CommitIndex()
	if err := r.env.Confirm(ctx); err != nil {
		return err
	}
	for {
		status, changed := r.env.State()
		if r.env.LastCommand(commit, status.Index) <= status.Index {
			r.env.ObserveReadIndex(time.Since(start))
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// answer answers reads. If the context ends first, it returns those that are left.
func (r *Reader) answer(ctx context.Context, reads []pendingRead) (left []pendingRead) {
	if !r.env.OneByOne {
		r.answerTogether(reads)
		return nil
	}
	for i := range reads {
		if ctx.Err() != nil {
			return reads[i:]
		}
		began := time.Now()
		r.answerTogether(reads[i : i+1])
		backoff.Pause(ctx, time.Since(began))
	}
	return nil
}

func (r *Reader) answerTogether(reads []pendingRead) {
	r.env.View(func(m *fsm.Machine) {
		index := m.Status().Index
		for i := range reads {
			r.env.Done(reads[i].tag, index, m.Read(reads[i].command))
		}
	})
}
