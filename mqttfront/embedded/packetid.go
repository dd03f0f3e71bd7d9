package embedded

import (
	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// OnPacketRead replaces the packet id of an inbound packet if an outbound message in flight has the
// same id. MQTT allows that, but mochi keeps the ids of both directions in one map: a PUBLISH would
// delete the outbound message, and a SUBSCRIBE or UNSUBSCRIBE would be refused. OnPacketEncode puts
// the client's id into the acknowledgement. Ids of QoS 2 are not replaced: their handshake has
// further packets.
func (h *hook) OnPacketRead(client *mqtt.Client, packet packets.Packet) (packets.Packet, error) {
	switch kind := packet.FixedHeader.Type; {
	case kind == packets.Publish && packet.FixedHeader.Qos == 1, kind == packets.Subscribe,
		kind == packets.Unsubscribe:
	default:
		return packet, nil
	}
	c := h.connection(client)
	if c == nil || packet.PacketID == 0 {
		return packet, nil
	}
	c.replacement = 0
	if _, clash := client.State.Inflight.Get(packet.PacketID); !clash {
		return packet, nil
	}
	id := packet.PacketID + 1<<15
	for range 1 << 16 {
		if _, taken := client.State.Inflight.Get(id); !taken && id != 0 {
			break
		}
		id++
	}
	c.original, c.replacement = packet.PacketID, id
	packet.PacketID = id
	return packet, nil
}

// OnPacketEncode changes outbound packets. mochi encodes a PUBACK, SUBACK or UNSUBACK on the
// goroutine that read the acknowledged packet, so it may use that goroutine's fields of connection.
func (h *hook) OnPacketEncode(client *mqtt.Client, packet packets.Packet) packets.Packet {
	switch packet.FixedHeader.Type {
	case packets.Puback, packets.Suback, packets.Unsuback:
		if packet.FixedHeader.Type == packets.Puback {
			if packet.ReasonCode == packets.CodeGrantedQos1.Code {
				// 0x01 is not a reason code of PUBACK, and some clients crash on it
				packet.ReasonCode = 0
			}
			packet.Properties.User = nil // mochi copies the request's
		}
		c := h.connection(client)
		if c != nil && c.unreceived && packet.FixedHeader.Type == packets.Puback {
			none := packets.CodeNoMatchingSubscribers
			// without a property, mochi omits a reason code below 0x80
			packet.ReasonCode, packet.Properties.ReasonString = none.Code, none.Reason
		}
		if c != nil && c.replacement != 0 && c.replacement == packet.PacketID {
			packet.PacketID = c.original
		}
	case packets.Connack:
		packet.Properties.MaximumPacketSize = maxPacketSize // mochi does not announce it
	}
	return packet
}
