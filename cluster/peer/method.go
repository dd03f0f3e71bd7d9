package peer

import (
	"context"

	"github.com/hashicorp/raft"
)

// Method identifies a request of the protocol between members. Numbers may be added, and are never
// changed or used again.
type Method uint8

// The methods. A caller that is not a member may use only those for which Public is true.
const (
	MethodTerm       Method = 10 // raft's current term, and the member's wall clock
	MethodPeerStatus Method = 11 // a Status
	// whether a raft id is a member, as the leader knows; true for every id while a configuration
	// is uncommitted
	MethodIsMember Method = 12
	MethodJoin     Method = 13 // add the node that the request names, or change its address
	MethodOffer    Method = 14 // settings for the leader to propose
	MethodHash     Method = 15 // hash of the state at a log index
)

// Quick reports whether the receiver answers a call in the loop that reads the connection, outside
// of the limit of concurrent calls. The handler of such a method must not block.
func (m Method) Quick() bool { return m == MethodTerm }

// Public reports whether the caller need not be a member.
func (m Method) Public() bool {
	return m == MethodPeerStatus || m == MethodIsMember ||
		m == MethodJoin
}

// Client calls other members. It is safe for concurrent use. Call sends a request and returns the
// member's answer, computed after the call began. If the member has no id, Call reaches the process
// that listens at the address. There are three kinds of errors:
//
//   - The member's own error. It may wrap ErrUnreachable, if the member could not reach the leader.
//   - ErrUnreachable, wrapped: there was no connection, or no answer in time. A request that was
//     sent may have been executed.
//   - The request is too large. It was not sent.
type Client interface {
	Call(ctx context.Context, member raft.Server, method Method, request []byte) ([]byte, error)
}

// Caller is who calls a member.
type Caller struct {
	// ID is the caller's raft id, or empty if the caller does not talk as a member: then only
	// Public methods are answered.
	ID raft.ServerID
	// Certified reports whether the caller's certificate has one of the names. Without TLS it
	// returns true for any names.
	Certified func(names ...string) bool
}

// Standing says whether a raft id is a member, as far as this node knows.
type Standing uint8

// The standings.
const (
	Stranger Standing = iota // it is no member
	Possible                 // it may be a member that this node has not heard of yet
	Known                    // it is a member
)
