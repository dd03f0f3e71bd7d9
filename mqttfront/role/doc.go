// Package role is what a node does with requests: as a follower it holds them, and as the leader it executes and answers them.
//
// Requests (requests.go) has what both roles work on: the requests that are not known to be answered (package pending), and what the node knows of
// the log. A Receiver decodes what the sessions bring and admits it (admit.go). What becomes of it depends on the role (role.go): a follower
// (follower.go) holds it; the Leader (leader.go, leaderrole.go) executes it through the Store (execute.go), and publishes replies and
// notifications (deliver.go). A new leader answers what it and the other nodes hold before it serves (collect.go, takeover.go). What depends on
// cluster.ingest is in ingeststrategy.go, ingesteverywhere.go and ingestatleader.go.
//
// Requests.mu guards the role, the pending requests and what is known of others. Locks are taken in this order: the store's state (View), Requests.mu, the
// store's queue of proposals. A name that ends in Locked says that Requests.mu must be held.
package role
