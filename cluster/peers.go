package cluster

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/hashicorp/raft"
)

// Method says what one member asks of another. The numbers are part of the protocol between members: only ever added.
type Method uint8

// The methods. A caller that need not be a member may use those for which Public is true.
const (
	MethodAsk        Method = 10 // what term the member is in, and its wall clock
	MethodPeerStatus Method = 11 // a PeerStatus
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

// Peers reaches other members. Call returns an answer that was given after the call, an error that wraps ErrUnreachable when
// there is none, or the member's own error. A member without an id is whoever listens at the address. It is safe for concurrent
// use.
type Peers interface {
	Call(ctx context.Context, member raft.Server, method Method, request []byte) ([]byte, error)
}

// ErrUnreachable says that a member did not answer.
var ErrUnreachable = errors.New("member unreachable")

// ErrRefused says that a member, or the leader, refused to do something, and that nothing was changed.
var ErrRefused = errors.New("refused")

// remoteError is an error on its way from one member to another.
type remoteError struct {
	Code string `json:"code,omitempty"`
	Text string `json:"text"`
	kind error
}

// Error implements error.
func (e *remoteError) Error() string { return e.Text }

// Unwrap returns the sentinel that the error wrapped at the other member.
func (e *remoteError) Unwrap() error { return e.kind }

// remoteKinds are the sentinels that survive the way from one member to another.
func remoteKinds() map[string]error {
	return map[string]error{
		"notLeader": ErrNotLeader, "notDone": ErrNotDone, "unknown": ErrOutcomeUnknown, "refused": ErrRefused, "unreachable": ErrUnreachable,
	}
}

// EncodeError turns an error into the body of an answer.
func EncodeError(err error) []byte {
	encoded := remoteError{Text: err.Error()}
	for code, kind := range remoteKinds() {
		if errors.Is(err, kind) {
			encoded.Code = code
		}
	}
	body, err := json.Marshal(&encoded)
	if err != nil {
		return nil // a string always encodes
	}
	return body
}

// RemoteError turns the body of an answer back into an error. It matches ErrNotLeader, ErrNotDone, ErrOutcomeUnknown and
// ErrRefused as the original did.
func RemoteError(body []byte) error {
	decoded := &remoteError{}
	if err := json.Unmarshal(body, decoded); err != nil {
		decoded.Text = "an error that cannot be read"
	}
	decoded.kind = remoteKinds()[decoded.Code]
	return decoded
}
