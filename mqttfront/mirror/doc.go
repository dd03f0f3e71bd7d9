// Package mirror keeps retained messages of the broker equal to keys of the state (docs/protocol.md, Mirrors).
//
// Only the leader publishes, by one connection whose client id all nodes share, so that a new leader disconnects an earlier one. When the
// connection begins, and when mirrors are configured or the state is replaced, the broker's retained messages are compared with the
// state, by a second connection that only subscribes: a broker may have lost some in a crash, and an earlier leader may have left some unpublished.
// Until the broker has sent what it retains, only changes and what is out of date are published. Then follows what it did not send, or sent with
// another value or version. What it sends and no mirror shows is cleared.
//
// What is to be published is a set of topics. The value is read from the state at the moment of publishing, so a slow broker gets the
// newest value of each key, and memory is bounded by the number of keys.
//
// What the broker refuses, or ends the connection on, is found out by sending the topics of its mirror one at a time, behind those of other mirrors.
//
// Locks: backlog.mu and Mirror.mu are taken while the state is locked (Applied, View), and no lock of the state is taken while they are held.
// Neither is taken while the other is held, except backlog.mu after Mirror.mu.
package mirror
