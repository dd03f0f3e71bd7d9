// Package role is what a node does with requests: as a follower it holds them, and as the leader it executes and answers them.
//
// The Dispatcher (dispatcher.go, observer.go) passes to the node's role what a Receiver has decoded, and what the store reports of the log. The roles
// (role.go) are: a follower (follower.go), which holds requests; a standby (standby.go), which leaves them to the broker; and the Leader (leader.go,
// leaderrole.go), which executes them through the Store (execute.go), and publishes replies and notifications (deliver.go). A new leader first takes up
// what it and the other nodes hold (leadership.go, collect.go, merge.go). All roles work on a tracker (tracker.go): the requests that are not known to be
// answered (package pending), and what the node knows of the log. What depends on cluster.ingest is in ingest.go.
//
// tracker.mu guards the role, the pending requests and what is known of others. Locks are taken in this order: the store's state (View), tracker.mu, then one
// of the store's queues (proposals, reads), the locks of package publish, or the acknowledgements of a session. A name that ends in Locked says that tracker.mu
// must be held.
package role
