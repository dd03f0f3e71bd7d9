package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// ingestAtLeader gives the cluster one session, which the leader has. A node's own session only tells whether the broker is there. The broker delivers
// the requests that a leader has not answered to the next leader. That one finds in the dedup table which of them had their effect.
type ingestAtLeader struct{}

func (ingestAtLeader) nonLeader(q *Requests) role { return standby{follower{q}} }

func (ingestAtLeader) onlyHolder(bool) bool { return true }

// rejectsRedelivery is true for a write that expired here, or that the log refused without a reply: later requests of its client may have been
// executed since. It is true for a write without an identity: an earlier leader may have executed it, and no node could recognise it.
func (ingestAtLeader) rejectsRedelivery(q *Requests, r *pending.Request) bool {
	return r.Command.ID.IsZero() || q.expiredHereLocked(r) || !q.pending.Hints.EndedAt(r.Command.ID, pending.EndNoReply).IsZero()
}

// isOfUnknownAge is true for a redelivery that this node has not received before, unless more than a second of its message expiry is left: then it has
// not expired, which bounds its age. The broker delivers in-flight messages again before queued ones, so no probe precedes the message and bounds its
// age. Brokers also deliver expired messages, with one second left.
func (ingestAtLeader) isOfUnknownAge(q *Requests, r *pending.Request) bool {
	const leftWhenExpired = time.Second
	if !r.Redelivered || !r.IsDeduplicated() || r.Deadline.Sub(r.Arrived) > leftWhenExpired {
		return false
	}
	earlier := q.pending.Get(r.Command.ID) // received by this node, which knows its age
	return earlier == nil || !earlier.IsOpen()
}

// standby is the role of a node that does not lead, with ingestAtLeader: the broker keeps the requests. The node holds none and acknowledges none.
type standby struct{ follower }

func (standby) hasRoom(*pending.Request) bool { return true }

// admit leaves the request to the broker, which delivers it to the next leader. A stale one is counted, as where nodes hold requests.
func (s standby) admit(r *pending.Request, _ dedupResult) {
	if s.isStaleLocked(r) {
		s.metrics.HeldDropped.WithLabelValues("stale").Inc()
	}
}

// requeued drops the request: it was not acknowledged, so the broker delivers it to the next leader.
func (s standby) requeued(r *pending.Request) {
	s.pending.EndWrite(r)
	s.releaseLocked(r)
}

func (standby) expects() bool { return false }

func (standby) reported(fsm.RequestID, time.Time) {} // it concerns held requests alone
