package mqttfront

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/publish"
)

// role is what a node does with requests, and with what the log says of them: it is a leader while it serves, and a follower otherwise. All methods
// need Front.mu.
type role interface {
	// hasRoom reports whether a request may be admitted. Until it may, the node reads nothing from the broker.
	hasRoom(f *Front, r *pending.Request) bool
	// admit takes a request in that has just come.
	admit(f *Front, r *pending.Request, found dedupResult)
	// coalescingDelay returns for how long messages from the broker may gather before they are read.
	coalescingDelay(f *Front) time.Duration
	// changed handles a change of a watched key.
	changed(f *Front, event *fsm.Event)
	// committed handles the outcome of a request that this node proposed: command i of an entry.
	committed(f *Front, r *pending.Request, outcome *fsm.Outcome, i int)
	// applied follows when all of an entry is handled.
	applied(f *Front, outcome *fsm.Outcome)
	// readDone handles the result of a GET.
	readDone(f *Front, r *pending.Request, result *fsm.Result)
	// givenBack decides what becomes of a held request that the store had.
	givenBack(f *Front, r *pending.Request)
	// expects reports whether requests whose outcomes the log shows are held here, or are still to come.
	expects(f *Front) bool
	// reported handles a leader's report of a request that was answered outside of the log.
	reported(f *Front, id fsm.RequestID, now time.Time)
}

// dedupResult is what a node found in the state about a request that has just come.
type dedupResult struct {
	done      bool // the node looked
	published bool // the reply is known to be published
}

// follower is the role of a node that does not serve. It holds requests. If the node becomes the leader, the leader answers them.
type follower struct{}

func (follower) hasRoom(f *Front, r *pending.Request) bool {
	return !f.onlyHolder() || !f.pending.Full(r)
}

func (follower) admit(f *Front, r *pending.Request, found dedupResult) {
	f.pending.NeedsLookup = f.pending.NeedsLookup || !found.done
	if f.isStale(r) {
		f.world.Metrics.heldDropped.WithLabelValues("stale").Inc()
		return // not acknowledged: the session ends
	}
	if !f.mode.followersHold() {
		return // not acknowledged: the broker still has it
	}
	if f.dropRedelivered(r) {
		return
	}
	// In a backlog, a copy of a request that was answered or shed is old.
	ended := r.Backlog && (found.published || !f.pending.Hints.EndedAt(r.Command.ID, pending.EndShed).IsZero())
	if ended || !f.keeps(r) {
		r.Done()
		return
	}
	if f.hold(r) && r.Outcome != 0 {
		f.pending.AddCommitted(r)
	}
}

func (follower) coalescingDelay(*Front) time.Duration { return followerDelay }

func (follower) changed(*Front, *fsm.Event) {}

func (follower) committed(f *Front, r *pending.Request, _ *fsm.Outcome, _ int) { f.parkCommitted(r) }

func (follower) applied(f *Front, outcome *fsm.Outcome) {
	for _, r := range f.pending.Released(outcome.Published) {
		f.end(r)
	}
}

func (follower) readDone(f *Front, r *pending.Request, _ *fsm.Result) { f.requeue(r) }

func (follower) givenBack(f *Front, r *pending.Request) {
	f.pending.EndWrite(r)
	switch {
	case !f.mode.followersHold():
		f.release(r)
	case f.dropStale(r): // a leader that was stopped had it
	default:
		f.keepFirst(r)
	}
}

func (follower) expects(f *Front) bool { return f.mode.followersHold() }

func (follower) reported(f *Front, id fsm.RequestID, now time.Time) {
	if r := f.pending.Get(id); r != nil && r.State.IsHeld() {
		f.end(r)
	} else if f.mode.followersHold() {
		f.pending.Hints.Answered(id, now)
	}
}

// outbox is where a leader puts what it publishes.
type outbox interface {
	// Send queues an output on the connection on which its client receives everything, and returns the outputs that are given up because of it.
	Send(client string, o *publish.Output) (givenUp []*publish.Output)
}

// leader is the role of a node while it serves: it executes and answers requests.
type leader struct {
	front     *Front
	session   *ingest.LeaderSession // nil where each node's own session brings requests
	outbox    outbox
	watermark publish.Watermark
	open      bool            // requests go to the store as they come
	silent    bool            // the entry that is being applied has an outcome that no client is told
	answered  []fsm.RequestID // outside of the log, and not reported yet
}

func (l *leader) hasRoom(f *Front, r *pending.Request) bool {
	return f.busy < f.config.Executing && !f.pending.Full(r)
}

func (l *leader) admit(f *Front, r *pending.Request, _ dedupResult) {
	if !f.dropRedelivered(r) && f.hold(r) && l.open {
		l.execute(f, r, true)
	}
}

func (l *leader) coalescingDelay(f *Front) time.Duration {
	if f.busy < enoughToDo {
		return 0
	}
	return min(leaderDelay, f.turnaround/delayShare)
}

func (l *leader) changed(f *Front, event *fsm.Event) { l.notify(f, event, 0) }

func (l *leader) committed(f *Front, r *pending.Request, outcome *fsm.Outcome, i int) {
	// The store itself refuses a write that waited there for too long. The outcome of that one may be forgotten, and that of a refusal that waited.
	late := outcome.Commands[i].Kind == fsm.KindReject && r.State != pending.StateRefusing || r.State == pending.StateRefusing && time.Since(r.Began) > f.config.ProposalAge
	barred := late || r.State == pending.StateBarring || r.State == pending.StateRepeating
	if !barred || l.answersBarred(f, r, &outcome.Results[i]) {
		l.answer(f, r, outcome.Index, &outcome.Results[i])
	}
}

func (l *leader) applied(f *Front, outcome *fsm.Outcome) {
	if l.silent {
		l.silent = false
		l.watermark.Add(outcome.Index) // so that the delivery watermark passes it, and the other nodes drop their copies
		l.published(outcome.Index)
	}
}

func (l *leader) readDone(f *Front, r *pending.Request, result *fsm.Result) {
	l.answer(f, r, 0, result)
}

// givenBack leaves a write counted as under way: the leadership is about to end, and no GET of the same client may overtake the write until then.
func (l *leader) givenBack(f *Front, r *pending.Request) {
	f.dropStale(r)
}

func (l *leader) expects(*Front) bool { return false }

func (l *leader) reported(*Front, fsm.RequestID, time.Time) {} // of an earlier leader
