package mirror

import "time"

// Status is what a Mirror is doing.
type Status struct {
	Leading   bool // if false, the fields below are not set
	Connected bool // also true while no mirror is configured
	Comparing bool // the broker's retained messages are being compared with the state, or will be
	Keys      int  // number of keys with a mirror, at the last comparison
	Unshown   int  // number of these keys that are not published, because their topic is invalid
	// number of retained messages that the broker lacked, since this node leads or since the last
	// Resync
	Missing int
	// number of retained messages, in the same time, that differed from the state or belonged to no
	// key
	Stale int
	// Blind says that the broker does not send this node the retained messages of some mirror. If a
	// key was deleted while no node led, or while the leader had no connection for mirrors, its
	// retained message may stay.
	Blind bool
	// Dropped says that the broker dropped some of its retained messages at the last comparison,
	// because it has not enough room to queue them for a client: it is not known whether these are
	// as in the state.
	Dropped    bool
	Unretained int // number of topics whose messages the broker acknowledges but does not retain
	Topics     int // number of topics that are not known to be as in the state
	Refused    int // number of topics that the broker refuses, or on which it ends the connection
	// Lag is the age of the oldest change that the broker has not acknowledged. Refused topics that
	// wait for a retry do not count. Without a connection, and until a comparison has succeeded, it
	// is at least the time since the connection was lost or the comparison became due. Failed
	// attempts do not reset it.
	Lag time.Duration
	// InSync says that the broker has acknowledged all corrections of the last comparison, and all
	// changes that are older than one second.
	InSync bool
	Fault  string // why there is no connection, or why the last comparison failed; empty otherwise
}
