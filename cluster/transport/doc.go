// Package transport connects the members of a cluster over TCP, with mutual TLS 1.3 or, where that is asked for, in the clear.
//
// One port serves three kinds of streams: Raft's, calls from member to member, and HTTP that one member forwards to another.
// Every connection names the raft id that it means and the one that it comes from, and the listener refuses any other: raft
// itself never checks whom a message was meant for, so a node that lost its disk would vote, at its old address, for an id
// that is dead (handshake.go). Addresses are names that are resolved anew for each connection.
//
// Locks are taken in this order: callClients.mu, then callClient.mu or connection.mu. conns.mu is held alone.
package transport
