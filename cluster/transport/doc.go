// Package transport connects the members of a cluster over TCP, with mutual TLS 1.3 or, where that
// is asked for, in the clear.
//
// One port serves three kinds of streams: Raft's, calls from member to member, and HTTP that one
// member forwards to another. Every connection names the raft ids of the caller and of the listener
// that it is meant for. A listener with another id refuses it. Raft itself never checks which id a
// message is meant for, so a node that lost its disk would vote, at its old address, as the member
// that it was (handshake.go). Only a call may leave out the listener's id, and its caller then
// counts as no member. Addresses are names that are resolved anew for each connection.
//
// Locks are taken in this order: callClients.mu, then callClient.mu or connection.mu.
// connection.writing is locked before connection.mu. conns.mu is held alone.
package transport
