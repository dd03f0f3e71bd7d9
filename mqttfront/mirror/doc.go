// Package mirror publishes the values of keys as retained messages, and keeps the two equal. A
// mirror is a setting that names these keys and the prefix of their topics (docs/protocol.md,
// Mirrors).
//
// Only the leader publishes, by one connection whose client id all nodes share, so that a new
// leader disconnects an earlier one. The leader compares the broker's retained messages with the
// state when the connection begins, when mirrors are configured, and when the state is replaced:
// the broker may have lost messages in a crash, and an earlier leader may have left some
// unpublished. A comparison uses a second connection, which publishes only its own markers. Until
// the broker has sent what it retains, only changed keys and keys with a stale message are
// published. Then the leader publishes the keys whose retained messages the broker did not send. A
// retained message that belongs to no key is cleared.
//
// The topics that are to be published are kept as a set without values (backlog). A value is read
// from the state at the moment of publishing, so a slow broker gets the newest value of each key,
// and memory is bounded by the number of keys.
//
// A Mirror has one connection, which publishes, and one comparer for it, which makes the passes of
// comparisons. Both ask desired what the retained messages are to be, and report to progress, which
// Status shows.
//
// What the broker refuses, and on what it ends the connection, is left out and tried again every
// few minutes (refused.go).
//
// Locks are taken in this order: Mirror.reading, the lock of the state (Applied, View), progress.mu
// or pass.mu, backlog.mu. desired.mu is taken last; no other lock is taken while it is held.
package mirror
