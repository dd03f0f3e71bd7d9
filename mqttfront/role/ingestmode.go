package role

// ingestMode says by what sessions requests come (Config.FollowLeader). New chooses it once.
type ingestMode uint8

const (
	// ingestEverywhere gives each node a session that brings all requests.
	ingestEverywhere ingestMode = iota
	// ingestAtLeader gives the cluster one session, which the leader has. A node's own session only tells whether the broker is there. The broker delivers
	// what the leader has not answered to the next leader, which finds in the dedup table what had its effect. A node that no longer leads drops all
	// requests.
	ingestAtLeader
)

// onlyHolder reports whether no other node has what this one receives. alone says that it is the only member.
func (m ingestMode) onlyHolder(alone bool) bool { return alone || m == ingestAtLeader }

// followersHold reports whether a node that does not lead holds requests. If not, the broker keeps them until they are answered.
func (m ingestMode) followersHold() bool { return m == ingestEverywhere }
