// Package presence finds client disconnects in what a broker publishes about its clients, so that
// their watches end. It never ends a watch that a client made after it reconnected.
//
// The broker's events arrive late, and by another connection than requests. Time is therefore taken
// from markers: messages that a node sends itself through the broker, by the session that receives
// the events. If an event arrives after a marker, the broker processed it after the marker was
// sent. If a disconnected client was not seen to reconnect before a marker returns, it was not
// connected when the marker was sent. No time comes from the broker's clock. The clocks of two
// nodes matter only if the leadership changes between the start of a watch and its end. They may
// then differ by 2 x Slack.
//
// Locks: session.handling is held while a Disconnect is reported and while a message is
// acknowledged; Watcher.mu is held alone.
package presence

import (
	"time"
)

// Slack is added to the times of watches and subtracted from the times of disconnects, because the
// clocks of two nodes may differ.
const Slack = time.Second

// Kind says what an Event is.
type Kind uint8

// The kinds of events.
const (
	// the client has a new connection; an earlier one, if any, has ended
	Connected    Kind = iota + 1
	Disconnected      // the client's connection has ended
	TakenOver         // the client's connection has ended because it has another one
	Present           // the client is connected, since an unknown time
	// the broker has reported its uptime; no client that was connected before its start is
	// connected any more
	Uptime
)

// Event is what a broker publishes about a client.
type Event struct {
	Kind     Kind
	ClientID string
	// Connection is a number that orders the connections of one client, if the broker publishes
	// one; 0 is unknown.
	Connection int64
	// Ago is, for Uptime, an upper bound on the broker's uptime when it published the event.
	Ago time.Duration
}

// Source says how a broker publishes events of its clients. Its methods are safe for concurrent
// use.
type Source interface {
	// Filters returns the topic filters to subscribe to.
	Filters() []string
	// Read returns the event that a message reports, and false if it reports none. retained says
	// that it was published before the subscription.
	Read(topic string, payload []byte, retained bool) (Event, bool)
}
