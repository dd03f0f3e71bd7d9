package session

import (
	"sync/atomic"
	"time"
)

// nagle detects that the broker leaves Nagle's algorithm on: most round trips then take as long as
// a delayed TCP acknowledgement. It judges how long the PUBACKs of the first probes of a connection
// take, which follow each other at once: after a pause the kernel acknowledges quickly. The broker
// sends the probe and then its PUBACK, and the node nothing in between. All methods but looks are
// called on one goroutine.
type nagle struct {
	// round trips on this connection, and those of them between nagleFrom and nagleTo
	trips, delayed int
	shows          atomic.Bool
}

const (
	nagleFrom  = 38 * time.Millisecond
	nagleTo    = 48 * time.Millisecond
	nagleTrips = 30 // number of round trips that are judged
)

// begin is called for each connection.
func (n *nagle) begin() { n.trips, n.delayed = 0, 0 }

// isJudging reports whether further trips of this connection count.
func (n *nagle) isJudging() bool { return n.trips < nagleTrips }

// looks reports whether the last connection that was judged looked like Nagle's algorithm.
func (n *nagle) looks() bool { return n.shows.Load() }

// trip notes a round trip, and reports whether the trips have begun to look like Nagle's algorithm.
func (n *nagle) trip(took time.Duration) (began bool) {
	if !n.isJudging() {
		return false
	}
	n.trips++
	if took >= nagleFrom && took <= nagleTo {
		n.delayed++
	}
	if n.isJudging() {
		return false
	}
	looks := n.delayed > n.trips/2
	return !n.shows.Swap(looks) && looks
}
