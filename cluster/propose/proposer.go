package propose

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// proposal is a command on its way into the log.
type proposal struct {
	command fsm.Command
	// the caller's value; exactly once, Applied returns it or Failed is called with it
	tag    any
	queued time.Duration // when the command was queued, relative to Leadership.StartMonotonic
}

func (p *proposal) size() int {
	const overhead = 128
	c := &p.command
	size := overhead + len(c.Key) + len(c.Value) + len(c.Expected) + len(c.Principal.ClientID) +
		len(c.Principal.Username) +
		len(c.Timestamp.NodeID) + len(c.Token.NodeID) + len(c.ExpectedVersion.NodeID)
	for i := range c.Principal.Attributes {
		size += len(c.Principal.Attributes[i].Name) + len(c.Principal.Attributes[i].Value)
	}
	for i := range c.Operations {
		operation := &c.Operations[i]
		size += overhead + len(operation.Key) + len(operation.Value) + len(operation.Expected) +
			len(operation.ExpectedVersion.NodeID)
	}
	for i := range c.Rejected {
		size += overhead + len(c.Rejected[i].ClientID)
	}
	return size
}

// inFlightEntry has the tags and the future of a proposed entry, until the future is resolved.
type inFlightEntry struct {
	number  uint64
	tags    []any
	future  raft.ApplyFuture
	applied bool // guarded by Proposer.mu
}

// Config bounds a Proposer. All fields are positive.
type Config struct {
	// BatchBytes and BatchCommands bound one log entry; a single command that is larger, or has
	// more operations, goes alone.
	BatchBytes int
	// most commands in one entry, at least 1; each operation of a transaction counts
	BatchCommands int
	// InFlight is how many entries may be proposed and not yet applied.
	InFlight int
	// MinPipelined is the least number of queued commands for which another entry is proposed while
	// one is in flight. A transaction counts as one command. With 1, no command waits for an entry
	// in flight.
	MinPipelined int
	// ProposalAge bounds how long a write with an id waits to be proposed. A write that waited
	// longer is refused: it may be a copy of an earlier request. The dedup table may have forgotten
	// that request's outcome by then, and the write would take effect twice.
	ProposalAge time.Duration
}

// Failure says why a command has no result.
type Failure uint8

// The failures.
const (
	NotDone Failure = iota // it has no effect and will have none
	Unknown                // it may have an effect, or may yet
	// Invalid: its batch cannot be encoded. It has no effect, and must not be proposed again.
	Invalid
)

// Environment has the functions that a Proposer calls. They are safe for concurrent use.
type Environment struct {
	// Submit gives an entry to raft and does not wait for its result. The future's response is an
	// *fsm.EntryOutcome, or an error.
	Submit func(data []byte) raft.ApplyFuture
	// Status returns the status of this member's state machine.
	Status func() fsm.Status
	// Failed is called with the tag of a command that gets no result from this leadership.
	Failed func(tag any, why Failure)
	// Monotonic is a clock that never goes back: the time since any fixed moment.
	Monotonic func() time.Duration
	// ClusterClock returns the cluster's clock, in milliseconds since the Unix epoch.
	ClusterClock func() int64
	// StorageLow reports whether a member's disk is nearly full.
	StorageLow func() bool
	// Proposed is called with each entry's number of commands and encoded size, before Submit.
	Proposed func(commands, bytes int)
	Log      *slog.Logger
}

// Leadership is a raft leadership of this node: its term, and two clocks' readings at its start. It
// begins with an entry of its own in the log, the LeaderStart.
type Leadership struct {
	Term uint64 // raft term of the leadership
	// monotonic time shortly after the LeaderStart was applied, never before
	StartMonotonic   time.Duration
	StartClusterTime int64 // cluster time when the LeaderStart was applied, in milliseconds
}

// Proposer makes log entries of queued commands (group commit). While an entry is being replicated,
// commands for the next one gather. It belongs to one leadership, and only it stamps entries with
// the term, a number and the clocks. Run is called once. All methods are safe for concurrent use.
type Proposer struct {
	config           Config
	env              Environment
	term             uint64
	startMonotonic   time.Duration       // as in Leadership
	startClusterTime int64               // as in Leadership
	slots            chan struct{}       // one for each entry that may be in flight
	unresolved       chan *inFlightEntry // proposed entries whose future is not resolved, in order

	mu        sync.Mutex
	queue     fifo[proposal]
	closed    bool
	unapplied []*inFlightEntry // proposed entries that are not applied, in order
	wake      chan struct{}    // wakes Run; has room for one signal

	// published is the delivery watermark of this leadership, 0 at first: the log index up to which
	// no notification is outstanding. The watermark of an earlier leadership is not taken over,
	// because this one may publish the same notifications again.
	published      atomic.Uint64
	watermarkMoved atomic.Bool // SetPublished has woken Run since the last entry or tick check
	// horizon is how long after the start of this leadership, in nanoseconds, the newest known
	// horizon was (fsm.Entry.HorizonAge); 0 while none is known.
	horizon atomic.Int64
	// number of the last entry; only Run's goroutine uses this field and those below
	number          uint64
	lastClusterTime int64         // cluster time in the last entry
	lastProposed    time.Duration // since startMonotonic, when the last entry was proposed
	lastWatermark   uint64        // delivery watermark in the last entry
}

// New returns a proposer for a leadership. It proposes nothing until Run is called.
func New(config Config, env Environment, l Leadership) *Proposer {
	return &Proposer{
		config: config, env: env, term: l.Term, startMonotonic: l.StartMonotonic,
		startClusterTime: l.StartClusterTime, lastClusterTime: l.StartClusterTime,
		slots:      make(chan struct{}, config.InFlight),
		unresolved: make(chan *inFlightEntry, config.InFlight), wake: make(chan struct{}, 1),
	}
}

// Add queues a command, and returns false if the leadership has ended. The caller calls Flush after
// the last command of a burst: Add itself wakes Run only when BatchCommands are queued.
func (p *Proposer) Add(command fsm.Command, tag any) bool {
	now := p.elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.queue.push(proposal{command, tag, now})
	if p.queue.len() == p.config.BatchCommands {
		// to wake Run earlier would split a burst into two entries
		p.poke()
	}
	return true
}

// Flush wakes Run, which proposes the queued commands at once, or when no entry is in flight any
// more (see nextBatch).
func (p *Proposer) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.len() > 0 {
		p.poke()
	}
}

func (p *Proposer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run proposes until the context ends or an entry fails. It calls Failed for each command that was
// not applied, and returns the reason.
func (p *Proposer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.awaitResults(cancel)
	}()
	p.proposeAll(ctx)
	close(p.unresolved)
	<-done
	p.mu.Lock()
	p.closed = true
	queue := p.queue
	p.queue = fifo[proposal]{}
	p.mu.Unlock()
	for i := range queue.len() {
		p.env.Failed(queue.at(i).tag, NotDone)
	}
	return context.Cause(ctx)
}

func (p *Proposer) proposeAll(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		commands, tags, ok := p.next(ctx, timer)
		if !ok {
			return
		}
		flight, err := p.propose(commands, tags)
		if err != nil {
			p.env.Log.Error("entry not proposed: its encoding is invalid", "error", err)
			for _, tag := range tags {
				p.env.Failed(tag, Invalid)
			}
			<-p.slots
			continue
		}
		p.unresolved <- flight // never blocks: it has room for as many entries as there are slots
	}
}

// next waits for commands and returns a batch. The batch is empty if a tick (an entry without
// commands) is due. next returns false when the context has ended.
func (p *Proposer) next(ctx context.Context, timer *time.Timer) ([]fsm.Command, []any, bool) {
	for ctx.Err() == nil {
		commands, tags, hold := p.nextBatch()
		if len(commands) > 0 {
			return commands, tags, true
		}
		wait := time.Duration(math.MaxInt64)
		if !hold {
			wait = p.untilTick()
		}
		if wait <= 0 {
			return nil, nil, true
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
	}
	return nil, nil, false
}

// nextBatch removes the next batch from the queue. It removes none, and returns hold, while an
// entry is in flight and fewer than MinPipelined commands are queued: each entry costs syncs and a
// round trip, whatever its size, so a few commands wait, as with Nagle's algorithm. Writes with an
// id that waited for longer than ProposalAge are replaced by their silent refusals: commands after
// which the requests cannot take effect any more.
func (p *Proposer) nextBatch() (commands []fsm.Command, tags []any, hold bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.queue.len(); n > 0 && n < p.config.MinPipelined && len(p.unapplied) > 0 {
		return nil, nil, true
	}
	count, size, work := 0, 0, 0
	for count < p.queue.len() {
		next := p.queue.at(count)
		size += next.size()
		work += max(1, len(next.command.Operations))
		if count > 0 && (size > p.config.BatchBytes || work > p.config.BatchCommands) {
			break
		}
		count++
	}
	if count == 0 {
		return nil, nil, false
	}
	now := p.elapsed()
	commands, tags = make([]fsm.Command, count), make([]any, count)
	for i := range count {
		commands[i], tags[i] = p.queue.at(i).command, p.queue.at(i).tag
		if now-p.queue.at(i).queued > p.config.ProposalAge && commands[i].IsRemembered() {
			commands[i] = commands[i].Refusal(true)
		}
	}
	p.queue.drop(count)
	return commands, tags, false
}

// propose stamps an entry and submits it to raft. It does not wait for the result.
func (p *Proposer) propose(commands []fsm.Command, tags []any) (*inFlightEntry, error) {
	low := p.env.StorageLow()
	p.watermarkMoved.Store(false)
	wall := p.env.ClusterClock()
	elapsed := p.elapsed()
	entry := fsm.Entry{
		Term: p.term, Number: p.number + 1, Elapsed: elapsed.Milliseconds(), Wall: wall,
		Published: p.published.Load(), StorageLow: low, Commands: commands,
	}
	if horizon := time.Duration(p.horizon.Load()); horizon > 0 {
		entry.HorizonAge = max(1, entry.Elapsed-horizon.Milliseconds())
	}
	data := fsm.AppendEntry(nil, &entry)
	if _, err := fsm.DecodeEntry(data); err != nil {
		return nil, fmt.Errorf("decode the encoded entry: %w", err)
	}
	flight := &inFlightEntry{number: entry.Number, tags: tags}
	p.mu.Lock()
	p.number, p.lastProposed, p.lastClusterTime, p.lastWatermark = entry.Number, elapsed,
		p.startClusterTime+entry.Elapsed, entry.Published
	p.unapplied = append(p.unapplied, flight)
	p.mu.Unlock()

	p.env.Proposed(len(commands), len(data))
	flight.future = p.env.Submit(data)
	return flight, nil
}

func (p *Proposer) elapsed() time.Duration { return p.env.Monotonic() - p.startMonotonic }

// Applied marks the entry of an outcome as applied and returns its tags, or nil if it is not the
// oldest entry in flight of this leadership. It is called for each entry that is applied, with the
// state locked.
func (p *Proposer) Applied(outcome *fsm.EntryOutcome) []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if outcome.Skipped || outcome.Term != p.term || len(p.unapplied) == 0 ||
		p.unapplied[0].number != outcome.Number {
		return nil
	}
	flight := p.unapplied[0]
	flight.applied = true
	p.unapplied = p.unapplied[1:]
	return flight.tags
}

// SetPublished raises the delivery watermark.
func (p *Proposer) SetPublished(index uint64) {
	for old := p.published.Load(); index > old; old = p.published.Load() {
		if !p.published.CompareAndSwap(old, index) {
			continue
		}
		if p.watermarkMoved.CompareAndSwap(false, true) {
			p.poke() // so that a tick carries the watermark if no command does
		}
		return
	}
}

// SetHorizon moves the horizon to an age ago. An older one has no effect. No entry is written for
// it: the next one carries it.
func (p *Proposer) SetHorizon(age time.Duration) {
	at := int64(p.elapsed() - age)
	for old := p.horizon.Load(); at > old &&
		!p.horizon.CompareAndSwap(old, at); old = p.horizon.Load() {
	}
}

// HorizonAge returns how long ago, by cluster time, the horizon in the state was.
func (p *Proposer) HorizonAge() time.Duration {
	status := p.env.Status()
	return time.Duration(status.LeaderStartTime+
		p.elapsed().Milliseconds()-status.Horizon) * time.Millisecond
}

// awaitResults waits for the result of each entry in flight, in order. The first failure ends this
// leadership's proposals. If the failed entry is never applied, the state machine skips all later
// entries of this leadership, because their numbers have a gap. If it is applied after all, they
// may be applied, too.
func (p *Proposer) awaitResults(cancel context.CancelCauseFunc) {
	for flight := range p.unresolved {
		err := flight.future.Error()
		p.mu.Lock()
		applied := flight.applied
		if !applied {
			// Its tags go to Failed below. So Applied must not return them, even if the entry is
			// applied later.
			for i, other := range p.unapplied {
				if other == flight {
					p.unapplied = append(p.unapplied[:i:i], p.unapplied[i+1:]...)
					break
				}
			}
		}
		p.mu.Unlock()
		<-p.slots
		p.poke()
		if applied {
			continue
		}
		why := NotDone
		if OutcomeUnknown(err) {
			why = Unknown
		}
		if err == nil {
			// The state machine skipped the entry, or it has halted and the response is an error.
			outcome, ok := flight.future.Response().(*fsm.EntryOutcome)
			if why = Unknown; ok && outcome.Skipped {
				why = NotDone
			}
			err = ErrSkipped
			if halted, isError := flight.future.Response().(error); isError {
				err = halted
			}
		}
		cancel(fmt.Errorf("entry %d of term %d: %w", flight.number, p.term, err))
		for _, tag := range flight.tags {
			p.env.Failed(tag, why)
		}
	}
}

// untilTick returns the time until an entry without commands (a tick) is due. A tick is due at the
// next key's expiry, one second after the last entry while something waits for cluster time, and
// 200 ms after the last entry if the delivery watermark has moved since.
func (p *Proposer) untilTick() time.Duration {
	const (
		idle           = time.Second
		watermarkDelay = 200 * time.Millisecond
	)
	status := p.env.Status()
	p.mu.Lock()
	defer p.mu.Unlock()
	elapsed := p.elapsed()
	wait := time.Duration(math.MaxInt64)
	if status.TimeIsPending {
		wait = p.lastProposed + idle - elapsed
	}
	if p.published.Load() <= p.lastWatermark {
		// The last entry carries the latest watermark, but SetPublished may have set the flag after
		// propose cleared it. While the flag is set, SetPublished does not wake this goroutine.
		p.watermarkMoved.Store(false)
	}
	if p.published.Load() > p.lastWatermark {
		wait = min(wait, p.lastProposed+watermarkDelay-elapsed)
	}
	if status.HasDeadline && (status.NextDeadline > p.lastClusterTime || len(p.unapplied) == 0) {
		deadline := time.Duration(min(status.NextDeadline-status.LeaderStartTime,
			math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
		wait = min(wait, deadline-elapsed)
	}
	return wait
}

// ErrSkipped says that the state machine skipped an entry, because it was not the next entry of the
// current leadership.
var ErrSkipped = errors.New("the state machine skipped the entry")

// OutcomeUnknown reports whether an entry whose future ended with this error may still take effect.
// Only three errors of raft's Apply say that it will not. Any other error leaves it open, also one
// that a later version of raft adds. nil means here that the entry was applied and that the state
// machine skipped it.
func OutcomeUnknown(err error) bool {
	return err != nil &&
		!errors.Is(err, raft.ErrNotLeader) &&
		!errors.Is(err, raft.ErrEnqueueTimeout) &&
		!errors.Is(err, raft.ErrLeadershipTransferInProgress)
}
