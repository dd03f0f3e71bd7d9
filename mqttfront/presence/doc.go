// Package presence finds client disconnects in what a broker publishes about its clients, so that their watches end. It never ends a watch that a
// client made after it reconnected.
//
// The broker's events arrive late, and by another connection than requests. Time is therefore taken from markers: messages that a node
// sends itself through the broker, by the session that brings the events. What arrives after a marker was processed by the broker after
// the marker was sent; and when a client was not seen to come back before a marker returns, it was away when the marker was sent. No clock
// of the broker gives a time. The clocks of two nodes count only when the leadership changes between a watch and its end, and may then be
// 2 x Slack apart.
//
// Locks: session.handling is held while a Disconnect is reported and while a message is acknowledged; Watcher.mu is held alone.
package presence

import (
	"time"
)

// Slack is by how much watches are stamped later, and disconnects earlier, so that the clocks of two nodes may differ.
const Slack = time.Second

// Kind says what an Event is.
type Kind uint8

// The kinds of events.
const (
	Connected    Kind = iota + 1 // the client has a new connection; an earlier one, if any, has ended
	Disconnected                 // the client's connection has ended
	TakenOver                    // the client's connection has ended because it has another one
	Present                      // the client is connected, since an unknown time
	Uptime                       // the broker has reported its uptime; no client that was connected before its start is connected any more
)

// Event is what a broker publishes about a client.
type Event struct {
	Kind     Kind
	ClientID string
	// Connection orders the connections of one client, where the broker publishes that; 0 is unknown.
	Connection int64
	// Ago is, for Uptime, an upper bound on the broker's uptime when it published the event.
	Ago time.Duration
}

// Source says how a broker publishes events of its clients. Its methods are safe for concurrent use.
type Source interface {
	// Filters are what to subscribe to.
	Filters() []string
	// Read returns what a message says, and false when that is nothing about clients. Retained says that it was published earlier.
	Read(topic string, payload []byte, retained bool) (Event, bool)
}
