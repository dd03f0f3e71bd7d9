// Package mqtttest has the broker's side of an MQTT connection, for tests.
package mqtttest

import (
	"bufio"
	"net"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
)

// Serve answers CONNECT, SUBSCRIBE and PUBLISH with QoS 1 with success until the connection ends,
// and closes it. Before each answer it calls handle, which may return another answer. Other packets
// get only what handle returns. If handle returns false, Serve ends the connection.
func Serve(conn net.Conn, handle func(*packets.ControlPacket) (answer packets.Packet, goOn bool)) {
	defer func() { _ = conn.Close() }() // the other side sees the end
	for reader := bufio.NewReader(conn); ; {
		packet, err := mqttconn.ReadPacket(reader, 1<<20)
		if err != nil {
			return
		}
		answer, goOn := handle(packet)
		if !goOn {
			return
		}
		if answer == nil {
			answer = success(packet)
		}
		if answer == nil {
			continue
		}
		if _, err := answer.WriteTo(conn); err != nil {
			return
		}
	}
}

func success(packet *packets.ControlPacket) packets.Packet {
	switch content := packet.Content.(type) {
	case *packets.Connect:
		return &packets.Connack{Properties: &packets.Properties{}}
	case *packets.Subscribe:
		granted := make([]byte, len(content.Subscriptions))
		for i := range granted {
			granted[i] = content.Subscriptions[i].QoS
		}
		return &packets.Suback{
			PacketID: content.PacketID, Reasons: granted,
			Properties: &packets.Properties{},
		}
	case *packets.Publish:
		if content.QoS == 0 {
			return nil
		}
		return &packets.Puback{PacketID: content.PacketID, Properties: &packets.Properties{}}
	default:
		return nil
	}
}
