// Package presence learns from what a broker publishes about its clients who has gone away, so that their watches end, and never ends a
// watch that a client made after it came back.
//
// What the broker tells arrives late, and by another connection than requests. Time is therefore taken from markers: messages that a node
// sends itself through the broker, by the session that brings the events. What arrives after a marker was processed by the broker after
// the marker was sent; and when a client was not seen to come back before a marker returns, it was away when the marker was sent. No clock
// of the broker counts. The clocks of two nodes count only when the leadership changes between a watch and its end, and may then be
// 2 x Slack apart.
package presence

import (
	"time"

	"holdfast/mqttfront/broker"
)

// Slack is what watches are made younger, and departures older, so that clocks of two nodes may differ.
const Slack = time.Second

// Kind is what an Event tells.
type Kind uint8

// The kinds of events.
const (
	Connected    Kind = iota + 1 // the client has a new connection; an earlier one, if any, has ended
	Disconnected                 // the client's connection has ended
	TakenOver                    // the client's connection has ended because it has another one
	Present                      // the client is connected since nobody knows when
	Started                      // the broker has started, and nobody who was connected before is
)

// Event is what a broker tells of a client.
type Event struct {
	Kind     Kind
	ClientID string
	// Connection orders the connections of one client, where the broker tells; 0 is unknown.
	Connection int64
	// Ago is how long ago a broker has Started, at least.
	Ago time.Duration
}

// Source says how a broker tells of its clients. Its methods are safe for concurrent use.
type Source interface {
	// Filters are what to subscribe to.
	Filters() []string
	// Read returns what a message says, and false when that is nothing about clients. Retained says that it was published earlier.
	Read(topic string, payload []byte, retained bool) (Event, bool)
}

// gone takes departures, in the Origin's reckoning.
type gone func(broker.Disconnect)
