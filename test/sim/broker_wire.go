package sim

import (
	"bufio"
	"bytes"
	"io"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
)

// serve speaks MQTT with a node over one connection.
func (b *broker) serve(c *conn) {
	defer func() { _ = c.Close() }() // the other side sees the end
	reader := bufio.NewReaderSize(c, 16<<10)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second)) // never fails
	packet, err := packets.ReadPacket(reader)
	if err != nil {
		return
	}
	connect, ok := packet.Content.(*packets.Connect)
	if !ok {
		return
	}
	expiry, limit := time.Duration(0), 65535
	if connect.Properties.SessionExpiryInterval != nil {
		expiry = time.Duration(*connect.Properties.SessionExpiryInterval) * time.Second
	}
	if connect.Properties.ReceiveMaximum != nil {
		limit = int(*connect.Properties.ReceiveMaximum)
	}
	a, present, err := b.attach(connect.ClientID, connect.CleanStart, expiry, limit)
	if err != nil {
		return
	}
	defer b.detach(a)
	receiveMaximum := b.options.receiveMaximum
	connack := &packets.Connack{
		SessionPresent: present,
		Properties:     &packets.Properties{ReceiveMaximum: &receiveMaximum},
	}
	if err := writeWhole(c, connack); err != nil {
		return
	}
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		b.send(c, a)
	}()
	defer a.end(0)
	patience := time.Duration(connect.KeepAlive) * time.Second * 3 / 2
	for {
		var deadline time.Time // none without a keep-alive
		if patience > 0 {
			deadline = time.Now().Add(patience)
		}
		_ = c.SetReadDeadline(deadline) // never fails
		packet, err := packets.ReadPacket(reader)
		if err != nil || !b.handlePacket(c, a, packet) {
			return
		}
	}
}

// writeWhole writes a packet in one piece: answers and deliveries come from different goroutines.
func writeWhole(c *conn, packet io.WriterTo) error {
	var whole bytes.Buffer
	if _, err := packet.WriteTo(&whole); err != nil {
		return err
	}
	_, err := c.Write(whole.Bytes())
	return err
}

// handlePacket does what a packet asks for, and reports whether the connection goes on.
func (b *broker) handlePacket(c *conn, a *attachment, packet *packets.ControlPacket) bool {
	select {
	case <-a.gone:
		return false
	default:
	}
	var err error
	switch content := packet.Content.(type) {
	case *packets.Publish:
		m := &message{
			topic: content.Topic, payload: content.Payload,
			properties: content.Properties, retain: content.Retain,
		}
		if content.Properties.MessageExpiry != nil {
			m.expires = time.Now().Add(
				time.Duration(*content.Properties.MessageExpiry) * time.Second)
		}
		if m.topic == topics.Invoke {
			m.properties.User = append(m.properties.User,
				packets.User{Key: stampProperty, Value: a.session.id})
		}
		b.published(content)
		var receivers []string
		if receivers, err = b.publish(m); err != nil {
			return false
		}
		if b.isDeaf(m.topic) {
			return true
		}
		ack := &packets.Puback{PacketID: content.PacketID, Properties: &packets.Properties{}}
		if len(receivers) == 0 && b.options.tellsNoSubscriber {
			ack.ReasonCode = mqttconn.ReasonNoMatchingSubscriber
		}
		err = writeWhole(c, ack)
	case *packets.Subscribe:
		suback := &packets.Suback{PacketID: content.PacketID, Properties: &packets.Properties{}}
		for _, subscription := range content.Subscriptions {
			b.subscribe(a, subscription.Topic)
			suback.Reasons = append(suback.Reasons, subscription.QoS)
		}
		err = writeWhole(c, suback)
	case *packets.Unsubscribe:
		unsuback := &packets.Unsuback{PacketID: content.PacketID, Properties: &packets.Properties{}}
		for _, filter := range content.Topics {
			b.unsubscribe(a, filter)
			unsuback.Reasons = append(unsuback.Reasons, 0)
		}
		err = writeWhole(c, unsuback)
	case *packets.Puback:
		b.acknowledge(a, content.PacketID)
	case *packets.Pingreq:
		_, err = c.Write([]byte{packets.PINGRESP << 4, 0})
	default:
		return false
	}
	return err == nil
}

// send sends the session's messages to the client until the connection ends.
func (b *broker) send(c *conn, a *attachment) {
	var out []byte
	for {
		select {
		case <-a.gone:
			if a.reason != 0 && !b.options.sendsNoDisconnect {
				// the connection ends either way
				_, _ = c.Write([]byte{packets.DISCONNECT << 4, 1, a.reason})
			}
			_ = c.Close() // the reader sees the end
			return
		case <-a.wake:
		}
		out = out[:0]
		for _, d := range b.next(a) {
			out = appendDelivery(out, &d)
		}
		if len(out) > 0 {
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	}
}

// appendDelivery appends a PUBLISH packet.
func appendDelivery(out []byte, d *delivery) []byte {
	properties := *d.properties
	if !d.expires.IsZero() {
		left := uint32(max((time.Until(d.expires)+time.Second-1)/time.Second, 1))
		properties.MessageExpiry = &left
	}
	packet := &packets.Publish{
		Topic: d.topic, Payload: d.payload, QoS: 1, PacketID: d.id,
		Duplicate: d.dup, Retain: d.retain, Properties: &properties,
	}
	if d.qos0 {
		packet.QoS = 0
	}
	return mqttconn.AppendPublish(out, packet)
}
