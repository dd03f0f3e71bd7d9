package role

import "holdfast/mqttfront/pending"

// ingestEverywhere gives each node a session that brings all requests. A node that does not lead holds them until they are known to be answered.
type ingestEverywhere struct{}

func (ingestEverywhere) nonLeader(q *Requests) role { return follower{q} }

func (ingestEverywhere) onlyHolder(alone bool) bool { return alone }

// rejectsRedelivery is true for a write that expired here: later requests of its client may have been executed since.
func (ingestEverywhere) rejectsRedelivery(q *Requests, r *pending.Request) bool {
	return q.expiredHereLocked(r)
}

// isOfUnknownAge is false: a probe bounds the age of whatever a node's own session brings.
func (ingestEverywhere) isOfUnknownAge(*Requests, *pending.Request) bool { return false }
