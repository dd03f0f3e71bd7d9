package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// follower is the role of a node that does not serve, where each node's own session brings requests. It holds them. If the node becomes the leader, the
// leader answers them.
type follower struct{ *Requests }

func (follower) leads() bool { return false }

func (f follower) hasRoom(r *pending.Request) bool {
	return !f.onlyHolderLocked(r.Arrived) || !f.pending.Full(r)
}

func (f follower) admit(r *pending.Request, found dedupResult) {
	f.pending.NeedsLookup = f.pending.NeedsLookup || !found.checked
	if f.isStaleLocked(r) {
		f.metrics.HeldDropped.WithLabelValues("stale").Inc()
		return // not acknowledged: the session ends
	}
	if f.dropRedeliveredLocked(r) {
		return
	}
	// In a backlog, a copy of a request that was answered or shed is old.
	published := found.index != 0 && found.index <= f.published && !f.termStart.mayBeUnanswered(found.index)
	ended := r.Backlog && (published || !f.pending.Hints.EndedAt(r.Command.ID, pending.EndNoReply).IsZero())
	if ended || !f.resolveCopyLocked(r) {
		r.Done()
		return
	}
	if f.addPendingLocked(r) && r.Outcome() != 0 {
		f.pending.AddOutcome(r)
	}
}

// followerDelay is how long a follower lets messages gather. It only holds them, so no client waits longer for that.
const followerDelay = 5 * time.Millisecond

func (follower) coalescingDelay() time.Duration { return followerDelay }

func (follower) changed(*fsm.Event) {}

func (f follower) committed(r *pending.Request, _ *fsm.Outcome, _ int) {
	f.requeueMaybeAppliedLocked(r)
}

func (f follower) applied(outcome *fsm.Outcome) {
	for _, r := range f.pending.Released(outcome.Published) {
		f.endLocked(r)
	}
}

func (f follower) readDone(r *pending.Request, _ *fsm.Result) { f.requeueLocked(r) }

func (f follower) requeued(r *pending.Request) {
	f.pending.EndWrite(r)
	if !f.dropStaleLocked(r) { // a leader that was stopped had it
		f.keepFirstLocked(r)
	}
}

func (follower) expects() bool { return true }

func (f follower) reported(id fsm.RequestID, now time.Time) {
	if r := f.pending.Get(id); r != nil && r.State().IsHeld() {
		f.endLocked(r)
	} else {
		f.pending.Hints.Answered(id, now)
	}
}
