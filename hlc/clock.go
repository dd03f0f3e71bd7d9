package hlc

import "math"

// CounterLimit bounds the counters that a Clock gives: they stay below it, because client libraries
// read a counter as a signed 32-bit integer and add to that. A counter that would reach the limit
// carries into the wall clock instead.
const CounterLimit = 1 << 30

// Clock is a hybrid logical clock: the greatest reading that it gave so far. It is a plain value
// without a lock and without a source of time; the physical clock is an argument. The zero value is
// a fresh clock.
type Clock struct {
	Wall    int64  // milliseconds since the Unix epoch
	Counter uint64 // orders timestamps of one millisecond
}

// Now advances the clock for a local event at the physical time wall (milliseconds) and returns the
// new reading, which is greater than every earlier one.
func (c *Clock) Now(wall int64) Clock {
	if wall > c.Wall {
		*c = Clock{Wall: wall}
		return *c
	}
	*c = after(c.Wall, c.Counter)
	return *c
}

// Receive merges the timestamp of a message into the clock at the physical time wall (milliseconds)
// and returns the new reading, which is greater than every earlier one and than the timestamp. The
// caller has checked the timestamp's skew. In the terms of the paper (l and c of the clock, lm and
// cm of the timestamp, pt the physical time):
//
//	l' = max(l, lm, pt)
//	c' = l'==l && l'==lm ? max(c,cm)+1 : l'==l ? c+1 : l'==lm ? cm+1 : 0
func (c *Clock) Receive(t Timestamp, wall int64) Clock {
	l := max(c.Wall, t.Wall, wall)
	switch {
	case l == c.Wall && l == t.Wall:
		*c = after(l, max(c.Counter, t.Counter))
	case l == c.Wall:
		*c = after(l, c.Counter)
	case l == t.Wall:
		*c = after(l, t.Counter)
	default:
		*c = Clock{Wall: l}
	}
	return *c
}

// Timestamp returns the reading as the timestamp of the node nodeID.
func (c Clock) Timestamp(nodeID string) Timestamp {
	return Timestamp{Wall: c.Wall, Counter: c.Counter, NodeID: nodeID}
}

// RaiseTo raises the clock to the wall clock and counter of t when that is ahead of it.
func (c *Clock) RaiseTo(t Timestamp) {
	if t.Wall > c.Wall || (t.Wall == c.Wall && t.Counter > c.Counter) {
		*c = Clock{Wall: t.Wall, Counter: t.Counter}
	}
}

// after returns the reading that follows (wall, counter): the next counter, or the next millisecond
// when the counter is used up. At the very end of time (2^63-1 ms) there is no next millisecond,
// and only the counter can go on.
func after(wall int64, counter uint64) Clock {
	switch {
	case counter < CounterLimit-1:
		return Clock{Wall: wall, Counter: counter + 1}
	case wall < math.MaxInt64:
		return Clock{Wall: wall + 1}
	case counter < math.MaxUint64:
		return Clock{Wall: wall, Counter: counter + 1}
	default:
		return Clock{Wall: wall, Counter: counter}
	}
}
