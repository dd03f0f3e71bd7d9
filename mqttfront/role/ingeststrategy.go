package role

import "holdfast/mqttfront/pending"

// ingestStrategy is a way in which requests reach the nodes: ingestEverywhere or ingestAtLeader. New chooses it once, by Config.IngestAtLeader. All
// methods need Requests.mu.
type ingestStrategy interface {
	// nonLeader returns the role of a node that does not serve.
	nonLeader(q *Requests) role
	// onlyHolder reports whether no other node has the requests that this node receives. alone says that the node is the only member.
	onlyHolder(alone bool) bool
	// rejectsRedelivery reports whether this node must not execute a write that the broker delivers again.
	rejectsRedelivery(q *Requests, r *pending.Request) bool
	// isOfUnknownAge reports whether nothing tells the age of a write, so that the dedup table may have forgotten its outcome. Such a write is
	// answered if its outcome is known, and is not executed otherwise.
	isOfUnknownAge(q *Requests, r *pending.Request) bool
}
