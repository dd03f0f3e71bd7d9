// Package mqttfront is the MQTT side of a node: requests in, commands out; replies and notifications back.
//
// Every node holds an ingest session (package ingest) and receives every request. What arrives is decoded (package wire) into a
// request and kept (admit.go, package pending) until it is known to be answered. What a node does with it depends on its role (role.go): a follower
// (follower.go) holds it. The leader (leader.go) executes it through the Store, and publishes replies and notifications on the outgoing connections (package publish). A new
// leader takes these connections over from the old one before it publishes anything, and answers what it held as a follower. What depends on
// cluster.ingest is in ingestmode.go.
//
// requests.mu guards the role, the pending requests and what is known of others. Locks are taken in this order: the store's state (View), requests.mu, the
// store's queue of proposals.
//
// A name that ends in Locked says that requests.mu must be held.
//
// The package knows nothing of Raft: it is given a Store. It knows nothing of a particular broker either: what differs between
// brokers is in a Driver.
package mqttfront

import (
	"context"
	"time"

	"holdfast/fsm"
)

// Store is the replicated state machine, as the front end uses it. A tag that was accepted comes back exactly once, through
// Applied, ReadDone or Failed of the Front.
type Store interface {
	// Propose queues a command for the log and reports whether this node took it up. It is on its way after the next Flush at the latest.
	Propose(command fsm.Command, tag any) bool
	// Read queues a GET and reports whether this node took it up. It is on its way after the next Flush at the latest.
	Read(command *fsm.Command, tag any) bool
	// Flush sends what is queued on its way: what comes in a burst makes one log entry, and one round of reads.
	Flush()
	// Confirm returns nil when this node led at some moment after the call.
	Confirm(ctx context.Context) error
	// View runs f with the state, not beside Applied and ReadDone.
	View(f func(*fsm.Machine))
	// Alone reports whether this node is the only member.
	Alone() bool
	// Broadcast gives a message to the HandleBroadcast of the front ends of all other nodes that can be reached in time.
	Broadcast(ctx context.Context, message []byte)
	// CollectHeld hands what Held of the other nodes' front ends gives to take, page by page, from several goroutines.
	CollectHeld(ctx context.Context, age time.Duration, take func(node string, page []byte))
	// Wall returns the cluster's clock, which no node's own can put wrong, in milliseconds since the Unix epoch, while this node leads.
	Wall() int64
	// SetPublished tells that everything up to the log index was published.
	SetPublished(index uint64)
}
