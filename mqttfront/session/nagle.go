package session

import "time"

// nagle detects that the broker leaves Nagle's algorithm on: many round trips of probes then take as long as a delayed TCP acknowledgement.
type nagle struct {
	trips, delayed int // round trips since the last judgement, and those of them between nagleFrom and nagleTo
	said           bool
}

const (
	nagleFrom  = 38 * time.Millisecond
	nagleTo    = 48 * time.Millisecond
	nagleTrips = 30 // number of round trips that are judged together
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
