// Package mqttconn holds MQTT 5 connections as Holdfast needs them, on the codec and the client of paho.golang: Conn takes messages
// out of the stream before paho's client sees them, and gives that client a connection with whole packets, gathered writes and
// bounded reads, Acks sends PUBACKs when they are due, Publisher is a connection that only publishes, fast, with every PUBACK
// reported, and Dialer tries several addresses in turn.
//
// Locks are taken in this order: Acks.mu, writing of Pinger.Run (only tried), Conn.writing, Conn.mu. Publisher.mu is held alone. A Receiver is called without a lock.
package mqttconn
