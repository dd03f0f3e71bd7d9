package peer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrNotLeader says that the request was not executed, because this node is not the leader, or
	// does not serve yet. A node that should forward a request to the leader returns it, too, if it
	// knows no leader or is the leader itself.
	ErrNotLeader = errors.New("this node does not lead")
	// ErrOutcomeUnknown says that a command may or may not take effect.
	ErrOutcomeUnknown = errors.New("the outcome is unknown")
	// ErrNotDone says that a command or a change had no effect and will have none. A step before
	// it, such as a pin or the removal of a predecessor, may have been committed.
	ErrNotDone = errors.New("the command was not executed")
	// ErrUnconfirmed says that a majority did not confirm the leadership.
	ErrUnconfirmed = fmt.Errorf("%w: no majority of the voters confirmed its leadership",
		ErrNotLeader)
	// ErrUnreachable says that a call got no answer: there was no connection, a handshake was
	// refused, or the deadline passed. A request that was sent may still take effect.
	ErrUnreachable = errors.New("member unreachable")
	// ErrRejected says that the member runs at its address, and refuses the connections of this
	// node. An error that wraps it also wraps ErrUnreachable.
	ErrRejected = errors.New("the member refuses the connection")
	// ErrRefused says that a request was refused. Its change was not made; a step before it, such
	// as a pin, may have been committed.
	ErrRefused = errors.New("refused")
)

// remoteError is an error that one member sends to another.
type remoteError struct {
	Code string `json:"code,omitempty"`
	Text string `json:"text"`
	kind error
}

// Error implements error.
func (e *remoteError) Error() string { return e.Text }

// Unwrap returns the sentinel that the error wrapped at the other member.
func (e *remoteError) Unwrap() error { return e.kind }

// remoteKind is a sentinel that errors.Is finds at the receiver, too.
type remoteKind struct {
	code string
	kind error
}

// remoteKinds returns the sentinels that are sent. ErrUnconfirmed is sent as ErrNotLeader, which it
// wraps. If an error wraps several, the first one of the list is sent.
func remoteKinds() []remoteKind {
	return []remoteKind{
		{"unknown", ErrOutcomeUnknown},
		{"refused", ErrRefused},
		{"notDone", ErrNotDone},
		{"notLeader", ErrNotLeader},
		{"unreachable", ErrUnreachable},
	}
}

// EncodeError turns an error into the body of an answer.
func EncodeError(err error) []byte {
	encoded := remoteError{Text: err.Error()}
	kinds := remoteKinds()
	if i := slices.IndexFunc(kinds,
		func(k remoteKind) bool { return errors.Is(err, k.kind) }); i >= 0 {
		encoded.Code = kinds[i].code
	}
	body, err := json.Marshal(&encoded)
	if err != nil {
		return nil // a string always encodes
	}
	return body
}

// DecodeError turns the body of an answer back into an error. The error wraps the one sentinel of
// remoteKinds that EncodeError found in the original.
func DecodeError(body []byte) error {
	decoded := &remoteError{}
	if err := json.Unmarshal(body, decoded); err != nil {
		decoded.Text = "an error that cannot be read"
	}
	for _, k := range remoteKinds() {
		if k.code == decoded.Code {
			decoded.kind = k.kind
		}
	}
	return decoded
}
