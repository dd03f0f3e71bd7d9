package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// role is what a node does with requests, and with what the log says of them: it is the Leader from Leader.Begin until the leadership ends, and a follower or a standby otherwise. All methods
// need tracker.mu.
type role interface {
	// leads reports whether this is the Leader role, which the node has from Leader.Begin until the leadership ends.
	leads() bool
	// hasRoom reports whether a request may be admitted. Until it may, the node reads nothing from the broker.
	hasRoom(r *pending.Request) bool
	// admit takes a request in that has just come.
	admit(r *pending.Request, found dedupResult)
	// coalescingDelay returns for how long messages from the broker may gather before they are read.
	coalescingDelay() time.Duration
	// changed handles a change of a watched key.
	changed(event *fsm.Event)
	// committed handles the outcome of a request that this node proposed: command i of an entry.
	committed(r *pending.Request, outcome *fsm.Outcome, i int)
	// applied is called after all commands of an entry were handled.
	applied(outcome *fsm.Outcome)
	// readDone handles the result of a GET.
	readDone(r *pending.Request, result *fsm.Result)
	// requeued decides what becomes of a request that is held again, or still held when a leadership ends.
	requeued(r *pending.Request)
	// expects reports whether requests whose outcomes the log shows are held here, or are still to come.
	expects() bool
	// reported handles a leader's report that a request is answered and need not be held.
	reported(id fsm.RequestID, now time.Time)
}

// dedupResult is what a node found in the state about a request that has just come.
type dedupResult struct {
	checked bool   // no recheck is needed: the dedup table was read, or the request is never in it
	index   uint64 // of the log entry with the outcome; 0 if the dedup table has none
}
