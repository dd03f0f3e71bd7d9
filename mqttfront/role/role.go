package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// role is what a node does with requests, and with what the log says of them. It is the Leader from Dispatcher.BeginLeading until the leadership ends, and a
// follower or a standby otherwise.
type role interface {
	// leadsLocked reports whether this is the Leader role, which the node has from Dispatcher.BeginLeading until the leadership ends.
	leadsLocked() bool
	// hasRoomLocked reports whether a request may be admitted. Until it may, the node reads nothing from the broker.
	hasRoomLocked(r *pending.Request) bool
	// admitLocked handles a request that has just come.
	admitLocked(r *pending.Request, found dedupResult)
	// coalescingDelayLocked returns for how long messages from the broker may gather before they are read.
	coalescingDelayLocked() time.Duration
	// changedLocked handles a change of a watched key.
	changedLocked(event *fsm.Event)
	// committedLocked handles the outcome of a request that this node proposed: command i of an entry.
	committedLocked(r *pending.Request, outcome *fsm.EntryOutcome, i int)
	// appliedLocked is called after all commands of an entry were handled.
	appliedLocked(outcome *fsm.EntryOutcome)
	// readDoneLocked handles the result of a GET or a SCAN.
	readDoneLocked(r *pending.Request, result *fsm.Result)
	// requeuedLocked decides what becomes of a request that is held again, or still held when a leadership ends.
	requeuedLocked(r *pending.Request)
	// expectsCopiesLocked reports whether this node holds, or will receive, the requests whose outcomes the log shows.
	expectsCopiesLocked() bool
	// reportedLocked handles a leader's report that a request is answered and need not be held.
	reportedLocked(id fsm.RequestID, now time.Time)
}

// dedupResult is what a node found in the state about a request that has just come.
type dedupResult struct {
	checked bool   // no recheck is needed: the dedup table was read, or the request is never in it
	index   uint64 // of the log entry with the outcome; 0 if the dedup table has none
}

// requeueLocked is called for a request that the store or a publish queue gives back. The request is held again, and the role current decides what becomes
// of it.
func requeueLocked(t *tracker, current role, r *pending.Request) {
	r.MarkHeld()
	t.load.remove(r)
	current.requeuedLocked(r)
}

// requeueMaybeAppliedLocked is requeueLocked for a request that was applied, or may have been. The next leader finds its outcome by its identity. A write
// without an identity cannot be found and must not be proposed again: it is dropped unanswered.
func requeueMaybeAppliedLocked(t *tracker, current role, r *pending.Request) {
	requeueLocked(t, current, r)
	if r.State().IsHeld() && !r.Read && r.Command.ID.IsZero() {
		t.metrics.HeldDropped.WithLabelValues("outcome_unknown").Inc()
		t.endLocked(r)
	}
}
