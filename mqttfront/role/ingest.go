package role

import (
	"time"

	"holdfast/mqttfront/pending"
)

// ingestStrategy is a way in which requests reach the nodes: ingestEverywhere or ingestAtLeader. It is chosen once, by Config.IngestAtLeader.
type ingestStrategy interface {
	// onlyHolder reports whether no other node has the requests that this node receives. alone says that the node is the only member.
	onlyHolder(alone bool) bool
	// rejectsRedelivery reports whether this node must not execute a write that the broker delivers again. expiredHere says that an earlier copy
	// expired before this node executed it, noReply that the log refused the write without a reply.
	rejectsRedelivery(r *pending.Request, expiredHere, noReply bool) bool
	// isOfUnknownAge reports whether nothing bounds the age of a write. Then the dedup table may have forgotten its outcome. Such a write is answered if its
	// outcome is known, and is not executed otherwise. earlier is the copy of it that this node holds, or nil.
	isOfUnknownAge(r, earlier *pending.Request) bool
}

// ingestEverywhere gives each node a session that brings all requests. A node that does not lead holds them until they are known to be answered.
type ingestEverywhere struct{}

func (ingestEverywhere) onlyHolder(alone bool) bool { return alone }

// rejectsRedelivery is true for a write that expired here: later requests of its client may have been executed since.
func (ingestEverywhere) rejectsRedelivery(_ *pending.Request, expiredHere, _ bool) bool {
	return expiredHere
}

// isOfUnknownAge is false: a probe (a message that the node sends to itself) bounds the age of all requests that a node's own session delivers.
func (ingestEverywhere) isOfUnknownAge(_, _ *pending.Request) bool { return false }

// ingestAtLeader gives the cluster one session, which the leader has. A node's own session only shows whether the broker can be reached. The broker
// delivers the requests that a leader has not answered to the next leader. The next leader finds in the dedup table which of them took effect.
type ingestAtLeader struct{}

func (ingestAtLeader) onlyHolder(bool) bool { return true }

// rejectsRedelivery is true for a write that expired here, or that the log refused without a reply: later requests of its client may have been
// executed since. It is true for a write without an identity: an earlier leader may have executed it, and no node could recognise it.
func (ingestAtLeader) rejectsRedelivery(r *pending.Request, expiredHere, noReply bool) bool {
	return r.Command.ID.IsZero() || expiredHere || noReply
}

// isOfUnknownAge is true for most redelivered writes with an identity. There are two exceptions. This node has an open copy of the write. Or more than a
// second of its message expiry is left: then it has not expired, which bounds its age. The broker delivers in-flight messages again before queued ones, so
// no probe precedes the message and bounds its age. Brokers also deliver expired messages, with one second left.
func (ingestAtLeader) isOfUnknownAge(r, earlier *pending.Request) bool {
	const leftWhenExpired = time.Second
	if !r.Redelivered || !r.UsesDedup() || r.Deadline.Sub(r.Arrived) > leftWhenExpired {
		return false
	}
	return earlier == nil || !earlier.IsOpen()
}
