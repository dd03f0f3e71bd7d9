// Package mirror keeps retained messages of the broker equal to keys of the state (docs/protocol.md, Mirrors).
//
// Only the leader publishes, by one connection whose client id all nodes share, so that a new leader disconnects an earlier one. When the
// connection begins, and when mirrors are configured or the state is replaced, the broker's retained messages are compared with the
// state, by a second connection that publishes only its own markers: a broker may have lost some in a crash, and an earlier leader may have left some
// unpublished. Until the broker has sent what it retains, only changed keys and keys with a stale message are published. Then the leader publishes the
// keys whose retained messages the broker did not send. A retained message of no key is cleared.
//
// What is to be published is a set of topics. The value is read from the state at the moment of publishing, so a slow broker gets the
// newest value of each key, and memory is bounded by the number of keys.
//
// What the broker refuses, or ends the connection on, is found out by sending the topics of its mirror one at a time, behind those of other mirrors.
//
// Locks are taken in this order: Mirror.reading, the lock of the state (Applied, View), Mirror.mu or pass.mu, backlog.mu. session.mu is taken last; no
// other lock is taken while it is held.
package mirror
