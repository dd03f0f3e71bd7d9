// Package outbox delivers replies and notifications to the broker.
//
// An Outbox has a fixed number of publishing connections. What one client receives leaves by one of
// them, in order: a queue for each connection keeps the order across reconnects. The client ids of
// the connections are the same on every node, so a new leader takes the connections over from the
// old one. A Watermark knows up to which log index everything was delivered.
//
// The package knows nothing of requests' states and of the log: it is given functions, and it tells
// a Handler what became of each Output.
//
// Locks: queue.mu, penalties.mu, takeoverLoop.mu and Outbox.mu are last in the order: no other lock
// is taken while one of them is held. The caller of Connections.Send may hold its own lock. No lock
// of this package is held while a Handler is called.
package outbox
