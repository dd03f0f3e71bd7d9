package mqttconn

import (
	"fmt"

	"github.com/eclipse/paho.golang/packets"
)

// puback is a PUBACK, and the done callback of its message.
type puback struct {
	id     uint16
	reason byte
	done   func(byte, error)
}

// beforeRead runs before each read of the network. If the last read had PUBACKs, it delays this
// one, but only while packet ids are free: with a small Receive Maximum, a delay for each window
// would limit the rate.
func (p *Publisher) beforeRead() {
	if p.delayNextRead && len(p.ids) > 0 && !p.expedited.Load() {
		p.coalesce.wait(ackDelay, p.starved)
	}
	p.delayNextRead = false
}

// read handles the packets that the broker sends, until the connection ends.
func (p *Publisher) read() {
	var acks []puback
	for {
		if acks = p.bufferedAcks(acks[:0]); len(acks) > 0 {
			p.acknowledged(acks)
			p.delayNextRead = true
			continue
		}
		p.delayNextRead = false
		packet, err := ReadPacket(p.reader, maxIncoming)
		if err != nil {
			p.fail(err, false)
			return
		}
		p.received.Add(1)
		switch content := packet.Content.(type) {
		case *packets.Pingresp:
		case *packets.Puback: // with long properties
			p.acknowledged([]puback{{id: content.PacketID, reason: content.ReasonCode}})
		case *packets.Publish: // some brokers subscribe clients that did not ask for it
			if content.QoS == 1 {
				p.send(packets.PUBACK<<4, 2, byte(content.PacketID>>8), byte(content.PacketID))
			}
		case *packets.Disconnect:
			p.fail(&ReasonCodeError{
				Reason: content.ReasonCode,
				Text:   content.Properties.ReasonString,
			}, false)
			return
		default:
			p.fail(fmt.Errorf("mqtt: unexpected %s", packet.PacketType()), false)
			return
		}
	}
}

// bufferedAcks waits for a packet. If that is a PUBACK, bufferedAcks returns it and the PUBACKs
// that are buffered after it. Otherwise it returns none. It does without paho's decoder, which
// allocates.
func (p *Publisher) bufferedAcks(acks []puback) []puback {
	for len(acks) == 0 || p.reader.Buffered() >= 4 {
		header, err := p.reader.Peek(2)
		if err != nil || header[0] != packets.PUBACK<<4 || header[1] < 2 || header[1] > 127 {
			break
		}
		size := 2 + int(header[1])
		if len(acks) > 0 && p.reader.Buffered() < size {
			break
		}
		packet, err := p.reader.Peek(size)
		if err != nil {
			break
		}
		ack := puback{id: uint16(packet[2])<<8 | uint16(packet[3])}
		if size > 4 {
			ack.reason = packet[4]
		}
		if _, err := p.reader.Discard(size); err != nil {
			break
		}
		acks = append(acks, ack)
	}
	return acks
}

// acknowledged calls the done callbacks of the messages that were acknowledged.
func (p *Publisher) acknowledged(acks []puback) {
	p.received.Add(1)
	p.mu.Lock()
	for i := range acks {
		if ack := &acks[i]; int(ack.id) < len(p.flight) {
			ack.done, p.flight[ack.id] = p.flight[ack.id], nil
		}
	}
	p.mu.Unlock()
	for _, ack := range acks {
		if ack.done != nil { // what is not in flight is ignored
			p.ids <- ack.id // has room: there are as many places as ids
			ack.done(ack.reason, nil)
		}
	}
}
