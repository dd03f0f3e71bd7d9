// Package mqttconn has MQTT 5 connections as Holdfast needs them, on the codec and the client of paho.golang:
//
//   - Conn takes messages out of the stream before paho's client sees them. It gives that client a connection with whole packets,
//     gathered writes and bounded reads.
//   - Acks sends PUBACKs in the order in which the messages arrived.
//   - Publisher is a connection that only publishes, fast, and reports every PUBACK.
//   - Dialer tries several addresses in turn.
//
// Locks are taken in this order: Acks.mu, the local mutex writing of Pinger.Run (only by TryLock), Conn.writing, Conn.mu. Publisher.mu is
// held alone.
// A Receiver is called without a lock.
package mqttconn
