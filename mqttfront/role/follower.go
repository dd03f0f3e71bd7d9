package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// follower is the role of a node that does not lead, with cluster.ingest: everywhere. It holds the requests that the node's own session delivers. If the
// node becomes the leader, its new role answers them.
type follower struct{ *tracker }

func (follower) leadsLocked() bool { return false }

func (f follower) hasRoomLocked(r *pending.Request) bool {
	return !f.onlyHolderLocked(r.Arrived) || !f.pending.Full(r)
}

func (f follower) admitLocked(r *pending.Request, found dedupResult) {
	f.unchecked = f.unchecked || !found.checked
	if f.stale.has(r) {
		f.metrics.HeldDropped.WithLabelValues("stale").Inc()
		return // not acknowledged: the session ends
	}
	if f.dropRedeliveredLocked(r) {
		return
	}
	// In a backlog, a message whose request was answered, or refused without a reply, is the original, and not a copy that the client sent again.
	published := found.index != 0 && found.index <= f.known.published && !f.known.termStart.mayBeUnanswered(found.index)
	ended := r.Backlog && (published || !f.pending.Hints().EndedAt(r.Command.ID, pending.EndNoReply).IsZero())
	if ended || !f.resolveCopyLocked(r) {
		r.Done()
		return
	}
	if f.addPendingLocked(r) && r.OutcomeIndex() != 0 {
		f.pending.AddOutcome(r)
	}
}

// followerDelay is how long a follower lets messages gather. It only holds them, so no client waits longer for that.
const followerDelay = 5 * time.Millisecond

func (follower) coalescingDelayLocked() time.Duration { return followerDelay }

func (follower) changedLocked(*fsm.Event) {}

func (f follower) committedLocked(r *pending.Request, _ *fsm.EntryOutcome, _ int) {
	requeueMaybeAppliedLocked(f.tracker, f, r)
}

func (f follower) appliedLocked(outcome *fsm.EntryOutcome) {
	for _, r := range f.pending.TakePublished(outcome.Published) {
		f.endLocked(r)
	}
}

func (f follower) readDoneLocked(r *pending.Request, _ *fsm.Result) { requeueLocked(f.tracker, f, r) }

func (f follower) requeuedLocked(r *pending.Request) {
	f.pending.EndProposal(r)
	if !f.dropStaleLocked(r) { // DropSince skipped it while the store or a publish queue had it
		f.keepFirstLocked(r)
	}
}

func (follower) expectsCopiesLocked() bool { return true }

func (f follower) reportedLocked(id fsm.RequestID, now time.Time) {
	if r := f.pending.Get(id); r != nil && r.State().IsHeld() {
		f.endLocked(r)
	} else {
		f.pending.Hints().RecordReport(id, now)
	}
}

// resolveCopyLocked merges a request with an earlier copy or a hint, and reports whether a follower must add it to the buffer. The only holder always
// adds it. Other followers never add one without an identity.
func (f follower) resolveCopyLocked(r *pending.Request) bool {
	if f.onlyHolderLocked(r.Arrived) {
		return true
	}
	if r.Command.ID.IsZero() {
		return false
	}
	earlier := f.pending.Get(r.Command.ID)
	if earlier != nil && earlier.State().IsHeld() && earlier.Expired(r.Arrived) { // its client sent it again: the new copy takes the new position
		f.forgetLocked(earlier)
		earlier = nil
	}
	if earlier != nil {
		if earlier.OutcomeIndex() == 0 { // one copy is enough
			earlier.Absorb(r)
			return false
		}
		if !earlier.State().IsHeld() { // the store still has the earlier copy, which answers this one, too, when the store returns it
			earlier.Absorb(r)
			earlier.MarkClientRetried()
			return false
		}
		f.endLocked(earlier) // the reply may have been lost: hold the new copy instead
		return true
	}
	index, known := f.pending.Hints().Consume(r.Command.ID, r.Arrived)
	mayBeUnanswered := f.known.termStart.mayBeUnanswered(index)
	if known && index <= f.known.published && !mayBeUnanswered {
		return false // it ended before this copy arrived
	}
	if r.SetOutcomeIndex(index); mayBeUnanswered {
		r.MarkAwaitingReport()
	}
	return true
}
