// Package hlc provides the hybrid logical clock timestamps that version every value of the store.
//
// A timestamp orders events across machines whose clocks disagree: a wall clock reading in
// milliseconds, a counter that separates events within one millisecond, and the id of the node that
// made it. The receive rule (see Clock.Receive) is the one of Kulkarni, Demirbas et al., "Logical
// Physical Clocks and Consistent Snapshots in Globally Distributed Databases" (2014).
//
// Timestamps travel in three places: the user property __ts of a request (the client's clock), the
// user property __ft of a request (a fencing token, which is a timestamp that somebody got from the
// store before), and the user property __ts of replies and notifications (the version of a value).
// A timestamp from outside that lies far in the future would drag every clock that merges it along;
// check it against MaxSkew before merging it.
//
// Nothing in this package reads a clock.
package hlc

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// MaxSkew is how far, in milliseconds, a timestamp may lie ahead of the clock of its receiver.
const MaxSkew = 60_000

// StoreNodeID is the node id in every version that the store gives.
const StoreNodeID = "StateStore"

// MaxNodeIDLength bounds the node id of a timestamp in bytes: fencing tokens stay with their keys,
// and no quota counts them.
const MaxNodeIDLength = 256

// ErrMalformed is wrapped by every error of Parse.
var ErrMalformed = errors.New("malformed timestamp")

// Timestamp is one reading of a hybrid logical clock. The zero value is before every timestamp that
// a node made.
type Timestamp struct {
	Wall    int64  // milliseconds since the Unix epoch, never negative
	Counter uint64 // orders timestamps with the same Wall
	NodeID  string // who made it; not empty and without ':' in a parsed timestamp
}

// Parse reads the text form {wall}:{counter}:{node id}. Leading zeros are accepted, signs and
// spaces are not. Wall is 0 … 2^63-1, counter 0 … 2^64-1. The node id has 1 to MaxNodeIDLength
// bytes and holds no colon.
func Parse(text string) (Timestamp, error) {
	wallText, rest, ok := strings.Cut(text, ":")
	if !ok {
		return Timestamp{}, fmt.Errorf("%w: no counter", ErrMalformed)
	}
	counterText, nodeID, ok := strings.Cut(rest, ":")
	if !ok {
		return Timestamp{}, fmt.Errorf("%w: no node id", ErrMalformed)
	}
	wall, err := parseDigits(wallText)
	if err != nil || wall > math.MaxInt64 {
		return Timestamp{}, fmt.Errorf("%w: wall clock is not a number from 0 to 2^63-1",
			ErrMalformed)
	}
	counter, err := parseDigits(counterText)
	if err != nil {
		return Timestamp{}, fmt.Errorf("%w: counter is not a number from 0 to 2^64-1", ErrMalformed)
	}
	if nodeID == "" || strings.Contains(nodeID, ":") || len(nodeID) > MaxNodeIDLength {
		return Timestamp{}, fmt.Errorf("%w: node id is empty, too long or holds a colon",
			ErrMalformed)
	}
	return Timestamp{Wall: int64(wall), Counter: counter, NodeID: nodeID}, nil
}

// parseDigits reads an unsigned decimal number with any leading zeros. strconv.ParseUint refuses
// signs and underscores, too. The explicit check makes that rule one of this package, independent
// of strconv.
func parseDigits(text string) (uint64, error) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, ErrMalformed
	}
	return strconv.ParseUint(text, 10, 64)
}

// Append appends the unpadded text form to dst.
func (t Timestamp) Append(dst []byte) []byte {
	dst = strconv.AppendInt(dst, t.Wall, 10)
	dst = append(dst, ':')
	dst = strconv.AppendUint(dst, t.Counter, 10)
	dst = append(dst, ':')
	return append(dst, t.NodeID...)
}

// String returns the unpadded text form.
func (t Timestamp) String() string {
	var short [80]byte // enough for most, and not on the heap
	return string(t.Append(short[:0]))
}

// IsZero reports whether t is the zero value.
func (t Timestamp) IsZero() bool { return t == Timestamp{} }

// Compare returns -1, 0 or +1: by wall clock, then counter, then node id bytewise.
func (t Timestamp) Compare(other Timestamp) int {
	if c := cmp.Compare(t.Wall, other.Wall); c != 0 {
		return c
	}
	if c := cmp.Compare(t.Counter, other.Counter); c != 0 {
		return c
	}
	return cmp.Compare(t.NodeID, other.NodeID)
}

// Before reports whether t orders before other.
func (t Timestamp) Before(other Timestamp) bool { return t.Compare(other) < 0 }

// TooFarAhead reports whether t lies more than MaxSkew ahead of wall, a clock reading in
// milliseconds.
func (t Timestamp) TooFarAhead(wall int64) bool {
	return t.Wall > wall && uint64(t.Wall)-uint64(max(wall, 0)) > MaxSkew
}
