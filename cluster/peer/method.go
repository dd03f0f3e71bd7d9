package peer

import (
	"context"

	"github.com/hashicorp/raft"
)

// Method says what one member asks of another. The numbers are part of the protocol between members: only ever added.
type Method uint8

// The methods. A caller that need not be a member may use those for which Public is true.
const (
	MethodAsk        Method = 10 // what term the member is in, and its wall clock
	MethodPeerStatus Method = 11 // a Status
	MethodMember     Method = 12 // whether a raft id is a member, by the word of the leader
	MethodJoin       Method = 13 // to be added
	MethodOffer      Method = 14 // settings for the leader to propose
	MethodHash       Method = 15 // hash of the state at a log index
	MethodBroadcast  Method = 16 // from front end to front end, without an answer
	MethodHeld       Method = 17 // a page of what the front end holds
)

// Quick reports whether a call is answered at once, from memory.
func (m Method) Quick() bool { return m == MethodAsk }

// Public reports whether the caller need not be a member.
func (m Method) Public() bool { return m == MethodPeerStatus || m == MethodMember || m == MethodJoin }

// Client calls other members. Call returns an answer that was given after the call, an error that wraps ErrUnreachable when there
// is none, or the member's own error. A member without an id is the process that listens at the address. It is safe for concurrent
// use.
type Client interface {
	Call(ctx context.Context, member raft.Server, method Method, request []byte) ([]byte, error)
}

// Caller is who calls a member.
type Caller struct {
	// ID is the caller's where it talks as a member; empty for one that need not be one.
	ID raft.ServerID
	// Certified reports whether the caller's certificate has one of the names.
	Certified func(names ...string) bool
}

// Standing is what a node knows of another that wants to talk to it as a member.
type Standing uint8

// The standings.
const (
	Stranger Standing = iota // it is no member
	Possible                 // it may be a member that this node has not heard of yet
	Known                    // it is a member
)
