package cluster

import (
	"context"
	"fmt"
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
	tag     any
	queued  time.Duration // since the leadership began
}

func (p *proposal) size() int {
	const overhead = 128
	c := &p.command
	size := overhead + len(c.Key) + len(c.Value) + len(c.Expected) + len(c.Principal.ClientID) + len(c.Principal.Username) +
		len(c.Timestamp.NodeID) + len(c.Token.NodeID)
	for i := range c.Principal.Attributes {
		size += len(c.Principal.Attributes[i].Name) + len(c.Principal.Attributes[i].Value)
	}
	for i := range c.Rejected {
		size += overhead + len(c.Rejected[i].ClientID)
	}
	return size
}

// batch is the content of one entry in flight.
type batch struct {
	number  uint64
	tags    []any
	future  raft.ApplyFuture
	applied bool // guarded by proposer.mu
}

// proposer turns what is queued into log entries: group commit. While an entry is on its way to the disks, the next one
// gathers. It belongs to one leadership and is the one place that stamps entries and calls raft's Apply.
type proposer struct {
	node    *Node
	term    uint64
	began   time.Duration // monotonic time when the LeaderStart was applied
	start   int64         // cluster time then
	slots   chan struct{} // one for each entry that may be in flight
	flights chan *batch   // proposed, in order

	mu       sync.Mutex
	queue    fifo[proposal]
	closed   bool
	inFlight []*batch
	wake     chan struct{} // has room for one

	published atomic.Uint64 // the published mark of this leadership: what an earlier one published may have been repeated since, in part
	markWaits atomic.Bool   // it has moved since the last entry
	number    uint64
	lastNow   int64         // cluster time in the last entry
	lastAt    time.Duration // since began, when the last entry was proposed
	lastMark  uint64
}

func newProposer(node *Node, term uint64, began time.Duration, start int64) *proposer {
	return &proposer{
		node: node, term: term, began: began, start: start, lastNow: start,
		slots: make(chan struct{}, node.config.InFlight), flights: make(chan *batch, node.config.InFlight), wake: make(chan struct{}, 1),
	}
}

// add queues a command and reports whether the leadership still takes any.
func (p *proposer) add(command fsm.Command, tag any) bool {
	now := p.elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.queue.push(proposal{command, tag, now})
	if p.queue.len() == p.node.config.FurtherBatch {
		p.poke()
	}
	return true
}

// flush has what is queued proposed.
func (p *proposer) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.len() > 0 {
		p.poke()
	}
}

func (p *proposer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run proposes until the context ends or an entry fails, and gives back what came to nothing. The error says why it ended.
func (p *proposer) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		p.settle(cancel)
	}()
	p.proposeAll(ctx)
	close(p.flights)
	<-settled
	p.mu.Lock()
	p.closed = true
	queue := p.queue
	p.queue = fifo[proposal]{}
	p.mu.Unlock()
	for i := range queue.len() {
		p.node.failed(queue.at(i).tag, false)
	}
	return context.Cause(ctx)
}

func (p *proposer) proposeAll(ctx context.Context) {
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
			p.node.world.Log.Error("commands were left out of the log", "error", err)
			for _, tag := range tags {
				p.node.failed(tag, true)
			}
			<-p.slots
			continue
		}
		p.flights <- flight // has room: it holds as many as there are slots
	}
}

// next waits for commands, or until a tick is due, which is an entry without any. It returns false when the context ended.
func (p *proposer) next(ctx context.Context, timer *time.Timer) ([]fsm.Command, []any, bool) {
	for ctx.Err() == nil {
		commands, tags, late, hold := p.take()
		if len(commands) > 0 {
			p.refuse(commands, late)
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

// take removes the next batch from the queue. A few commands are held back while an entry is in flight, as Nagle's algorithm holds back
// a small segment: an entry costs two writes to each disk and a round of messages, however little is in it, and what the next one brings
// would have waited for those anyway. late are the indexes of writes that have waited for too long.
func (p *proposer) take() (commands []fsm.Command, tags []any, late []int, hold bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.queue.len(); n > 0 && n < p.node.config.FurtherBatch && len(p.inFlight) > 0 {
		return nil, nil, nil, true
	}
	count, size := 0, 0
	for count < p.queue.len() && count < p.node.config.BatchCommands {
		size += p.queue.at(count).size()
		if count > 0 && size > p.node.config.BatchBytes {
			break
		}
		count++
	}
	if count == 0 {
		return nil, nil, nil, false
	}
	now := p.elapsed()
	commands, tags = make([]fsm.Command, count), make([]any, count)
	for i := range count {
		commands[i], tags[i] = p.queue.at(i).command, p.queue.at(i).tag
		if now-p.queue.at(i).queued > p.node.config.ProposalAge && commands[i].IsRemembered() {
			late = append(late, i)
		}
	}
	p.queue.drop(count)
	return commands, tags, late, false
}

// refuse replaces writes by their refusals. p.mu must not be held: the state's lock comes first.
func (p *proposer) refuse(commands []fsm.Command, late []int) {
	if len(late) == 0 {
		return
	}
	silent := p.node.replica.status().Version >= fsm.VersionProlong
	for _, i := range late {
		commands[i] = commands[i].Refusal(silent)
	}
}

// propose stamps an entry and hands it to raft, without waiting for what becomes of it.
func (p *proposer) propose(commands []fsm.Command, tags []any) (*batch, error) {
	low := p.node.diskLow() || p.node.peers.anyDiskLow()
	p.markWaits.Store(false)
	wall := p.node.clock.now()
	elapsed := p.elapsed()
	entry := fsm.Entry{
		Term: p.term, Number: p.number + 1, Elapsed: elapsed.Milliseconds(), Wall: wall,
		Published: p.published.Load(), StorageLow: low, Commands: commands,
	}
	data := fsm.AppendEntry(nil, &entry)
	if _, err := fsm.DecodeEntry(data); err != nil {
		return nil, fmt.Errorf("a batch does not survive its encoding: %w", err)
	}
	flight := &batch{number: entry.Number, tags: tags}
	p.mu.Lock()
	p.number, p.lastAt, p.lastNow, p.lastMark = entry.Number, elapsed, p.start+entry.Elapsed, entry.Published
	p.inFlight = append(p.inFlight, flight)
	p.mu.Unlock()

	p.node.world.Metrics.proposed(len(commands), len(data))
	flight.future = p.submit(data)
	return flight, nil
}

func (p *proposer) elapsed() time.Duration { return p.node.world.Clock.Monotonic() - p.began }

// tags returns those of the entry with the number, if this leadership proposed it. It is called for each entry that is
// applied, with the state locked.
func (p *proposer) tags(outcome *fsm.Outcome) []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if outcome.Skipped || outcome.Term != p.term || len(p.inFlight) == 0 || p.inFlight[0].number != outcome.Number {
		return nil
	}
	flight := p.inFlight[0]
	flight.applied = true
	p.inFlight = p.inFlight[1:]
	return flight.tags
}

// setPublished moves the published mark. It never moves back.
func (p *proposer) setPublished(index uint64) {
	for old := p.published.Load(); index > old; old = p.published.Load() {
		if !p.published.CompareAndSwap(old, index) {
			continue
		}
		if p.markWaits.CompareAndSwap(false, true) {
			p.poke() // so that it goes out in time although nothing else does
		}
		return
	}
}

// settle waits for what becomes of each entry in flight. The first that fails ends the leadership's proposals: those behind
// it will be skipped by the state machine, because their numbers are not the next.
func (p *proposer) settle(cancel context.CancelCauseFunc) {
	for flight := range p.flights {
		err := flight.future.Error()
		p.mu.Lock()
		applied := flight.applied
		if !applied {
			// From now on nobody waits for it, even if it is applied after all.
			for i, other := range p.inFlight {
				if other == flight {
					p.inFlight = append(p.inFlight[:i:i], p.inFlight[i+1:]...)
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
		unknown := outcomeUnknown(err)
		if err == nil {
			// It went through the state machine without effect, or the state machine has stopped.
			outcome, ok := flight.future.Response().(*fsm.Outcome)
			unknown, err = !ok || !outcome.Skipped, ErrSkipped
		}
		cancel(fmt.Errorf("entry %d of term %d: %w", flight.number, p.term, err))
		for _, tag := range flight.tags {
			p.node.failed(tag, unknown)
		}
	}
}

// untilTick returns how long cluster time may stand still: until the next key expires, a second while anything waits for
// time to move, and a fifth of one when the published mark has moved.
func (p *proposer) untilTick() time.Duration {
	const (
		idle      = time.Second
		markDelay = 200 * time.Millisecond
	)
	status := p.node.replica.status()
	p.mu.Lock()
	defer p.mu.Unlock()
	elapsed := p.elapsed()
	wait := time.Duration(math.MaxInt64)
	if status.TimeIsPending {
		wait = p.lastAt + idle - elapsed
	}
	if p.published.Load() > p.lastMark {
		wait = min(wait, p.lastAt+markDelay-elapsed)
	}
	if status.HasDeadline && (status.NextDeadline > p.lastNow || len(p.inFlight) == 0) {
		deadline := time.Duration(min(status.NextDeadline-status.LeaderStart, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
		wait = min(wait, deadline-elapsed)
	}
	return wait
}

// submit gives an entry to raft. What it did is told when it is applied, that is, committed.
func (p *proposer) submit(data []byte) raft.ApplyFuture {
	return p.node.raft.ApplyLog(raft.Log{Data: data}, 0) // 0: its timeout would only cover the queue
}
