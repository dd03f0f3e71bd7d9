package cluster

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"holdfast/cluster/peer"
	"holdfast/cluster/propose"
	"holdfast/cluster/readindex"
	"holdfast/fsm"
)

// leadership is the proposer and the readers of one term in which this node leads.
type leadership struct {
	term     uint64
	proposer *propose.Proposer
	reader   *readindex.Reader
	scanner  *readindex.Reader // answers SCANs, so that no GET waits behind a SCAN
}

// commandRouter hands commands to the proposer, and reads to the readers, while this node leads. It
// gives a command's result to the goroutine that waits for it in executeAt, or to the observer (the
// front end). It is safe for concurrent use.
type commandRouter struct {
	// accepts proposals and reads; nil until its LeaderStart (its first entry) is applied, and
	// after Serve returns
	leadership atomic.Pointer[leadership]
	// remains after Serve returns, until the leadership's work has ended: entries may still be in
	// flight
	proposer atomic.Pointer[propose.Proposer]
	observer interface {
		Applied(outcome *fsm.EntryOutcome, tags []any)
		Failed(tag any, invalid bool)
	}
	// confirmTerm returns nil when this node was the leader of the term at some moment after the
	// call.
	confirmTerm func(ctx context.Context, term uint64) error
}

// begin lets the node propose and read in a leadership.
func (c *commandRouter) begin(l *leadership) {
	c.proposer.Store(l.proposer)
	c.leadership.Store(l)
}

// stopAccepting ends proposals and reads in a leadership. Entries in flight still get their
// results.
func (c *commandRouter) stopAccepting(l *leadership) { c.leadership.CompareAndSwap(l, nil) }

// end removes a leadership whose work has all ended.
func (c *commandRouter) end(l *leadership) {
	c.stopAccepting(l)
	c.proposer.Store(nil)
}

// serving reports whether this node can propose and read as the leader. It becomes true before
// Observer.Serve is called.
func (c *commandRouter) serving() bool { return c.leadership.Load() != nil }

// confirm returns nil when this node was the leader of its term at some moment after the call.
func (c *commandRouter) confirm(ctx context.Context) error {
	l := c.leadership.Load()
	if l == nil {
		return peer.ErrNotLeader
	}
	return c.confirmTerm(ctx, l.term)
}

func (c *commandRouter) propose(command fsm.Command, tag any) bool {
	l := c.leadership.Load()
	return l != nil && l.proposer.Add(command, tag)
}

func (c *commandRouter) read(command *fsm.Command, tag any) bool {
	l := c.leadership.Load()
	if l == nil {
		return false
	}
	if command.Kind == fsm.KindScan {
		return l.scanner.Add(command, tag)
	}
	return l.reader.Add(command, tag)
}

func (c *commandRouter) flush() {
	if l := c.leadership.Load(); l != nil {
		l.proposer.Flush()
		l.reader.Flush()
		l.scanner.Flush()
	}
}

func (c *commandRouter) setPublished(index uint64) {
	if p := c.proposer.Load(); p != nil {
		p.SetPublished(index)
	}
}

func (c *commandRouter) setHorizon(age time.Duration) {
	if p := c.proposer.Load(); p != nil {
		p.SetHorizon(age)
	}
}

func (c *commandRouter) horizonAge() time.Duration {
	if p := c.proposer.Load(); p != nil {
		return p.HorizonAge()
	}
	return math.MaxInt64
}

// waiter is the tag of a command that one of this package's own goroutines waits for.
type waiter struct {
	done   chan struct{}
	index  uint64 // log index of the command's entry
	result fsm.Result
	err    error
}

// execute implements Node.Execute.
func (c *commandRouter) execute(ctx context.Context, command fsm.Command) (fsm.Result, error) {
	result, _, err := c.executeAt(ctx, command)
	return result, err
}

// executeAt is execute, and returns the index of the entry as well.
func (c *commandRouter) executeAt(ctx context.Context, command fsm.Command) (result fsm.Result,
	index uint64, err error,
) {
	w := &waiter{done: make(chan struct{})}
	if !c.propose(command, w) {
		return fsm.Result{}, 0, peer.ErrNotLeader
	}
	c.flush()
	select {
	case <-w.done:
		return w.result, w.index, w.err
	case <-ctx.Done():
		return fsm.Result{}, 0, ctx.Err()
	}
}

// applied gives the results of an applied entry to the waiters and to the observer. It is called
// with the state locked.
func (c *commandRouter) applied(outcome *fsm.EntryOutcome) {
	var tags []any
	if p := c.proposer.Load(); p != nil {
		tags = p.Applied(outcome)
	}
	for i, tag := range tags {
		if w, ok := tag.(*waiter); ok {
			w.index, w.result = outcome.Index, outcome.Results[i]
			close(w.done)
			tags[i] = nil
		}
	}
	c.observer.Applied(outcome, tags)
}

// failed ends the command with this tag without a result.
func (c *commandRouter) failed(tag any, why propose.Failure) {
	switch tag := tag.(type) {
	case nil:
	case *waiter:
		tag.err = peer.ErrNotDone
		if why != propose.NotDone {
			tag.err = peer.ErrOutcomeUnknown
		}
		close(tag.done)
	default:
		c.observer.Failed(tag, why == propose.Invalid)
	}
}
