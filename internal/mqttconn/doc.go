// Package mqttconn has MQTT 5 connections as Holdfast needs them, on the codec of paho.golang. A
// connection that subscribes is used like this:
//
//	conn, connack, err := mqttconn.Connect(ctx, network, login.Packet(clientID, false),
//		mqttconn.Receiver{
//			MaxPacket: 1 << 20,
//			Publish:   func(m mqttconn.Message) { … },
//		})
//	…
//	conn.Start()
//	err = conn.Subscribe(ctx, packets.SubOptions{Topic: "t", QoS: 1})
//	…
//	<-conn.Done() // conn.Err() says why it ended
//	conn.Close()
//
// These are its parts:
//
//   - Conn subscribes, receives and publishes. What it receives is handled on one goroutine, with
//     gathered writes and bounded reads.
//   - Acks sends PUBACKs in the order in which the messages arrived.
//   - Publisher is a connection that only publishes, fast, and reports every PUBACK.
//   - Dialer tries several addresses in turn.
//
// Locks are taken in this order: Acks.mu, Conn.mu. Publisher.mu is held alone. A Receiver is
// called without a lock.
package mqttconn
