package ingest

import "time"

// nagle detects that round trips gather at the time of a delayed acknowledgement: the broker leaves Nagle's algorithm on.
type nagle struct {
	trips, delayed int
	said           bool
}

const (
	nagleFrom  = 38 * time.Millisecond
	nagleTo    = 48 * time.Millisecond
	nagleTrips = 30 // are judged together
)

// trip notes a probe's round trip, and reports whether to log that the trips look like Nagle's algorithm. It does so once.
func (n *nagle) trip(took time.Duration) bool {
	n.trips++
	if took >= nagleFrom && took <= nagleTo {
		n.delayed++
	}
	if n.trips < nagleTrips {
		return false
	}
	looks := n.delayed > n.trips/2 && !n.said
	n.said = n.said || looks
	n.trips, n.delayed = 0, 0
	return looks
}
