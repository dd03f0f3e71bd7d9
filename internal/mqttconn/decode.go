package mqttconn

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"github.com/eclipse/paho.golang/packets"
)

// errMalformed says that a packet is not what MQTT 5 allows, or not what was asked of the broker.
var errMalformed = errors.New("mqtt: malformed packet")

// maxPuback is how many bytes of a PUBACK are read ahead for parsePuback. Its header, packet id and
// reason code have at most 8 bytes; properties follow.
const maxPuback = 16

// parsePuback reads the beginning of a PUBACK. The packet begins with its fixed header, of
// headerSize bytes.
func parsePuback(packet []byte, headerSize int) (id uint16, reason byte, ok bool) {
	if len(packet) < headerSize+2 {
		return 0, 0, false
	}
	if len(packet) > headerSize+2 {
		reason = packet[headerSize+2]
	}
	return binary.BigEndian.Uint16(packet[headerSize:]), reason, true
}

// received holds a message and its parts of fixed size, so that all of them are one allocation.
type received struct {
	publish    Publish
	properties Properties
	expiry     uint32
	format     byte
	user       [4]UserProperty // as many as most requests have
}

// readPublish reads a PUBLISH of size bytes, the fixed header of headerSize bytes included. It
// allocates three times: the packet, the text before the payload, and the message. paho's decoder
// allocates for each field.
func readPublish(r *bufio.Reader, headerSize, size int) (Message, error) {
	packet := make([]byte, size)
	if _, err := io.ReadFull(r, packet); err != nil {
		return Message{}, err
	}
	return parsePublish(packet, headerSize)
}

// parsePublish reads a PUBLISH. The packet begins with its fixed header, of headerSize bytes.
// Payload and Correlation Data point into the packet, which must not change any more.
func parsePublish(packet []byte, headerSize int) (Message, error) {
	message := &received{}
	p := &message.publish
	p.Properties = &message.properties
	p.QoS, p.Retain = packet[0]>>1&3, packet[0]&1 == 1
	if p.QoS > 1 {
		return Message{}, errMalformed // this client subscribes at QoS 1 at most
	}
	body := packet[headerSize:]
	rest := cursor{body: body}
	topic := rest.bytes()
	if p.QoS == 1 {
		p.PacketID = rest.uint16()
	}
	properties := rest.next(rest.length())
	if rest.bad || p.QoS == 1 && p.PacketID == 0 {
		return Message{}, errMalformed
	}
	text := string(body[:rest.at]) // everything before the payload: the strings are parts of it
	p.Topic = text[2 : 2+len(topic)]
	p.Payload = body[rest.at:len(body):len(body)]
	inner := cursor{body: body[:rest.at], at: rest.at - len(properties)}
	message.parseProperties(&inner, text)
	if inner.bad {
		return Message{}, errMalformed
	}
	return Message{
		Publish: p, Size: len(packet) + len(text),
		Redelivered: packet[0]&duplicate != 0,
	}, nil
}

// duplicate is the DUP flag of a fixed header.
const duplicate = 1 << 3

// maxUserProperties bounds the user properties that are kept of a message, because each takes more
// memory than it takes in the packet. The last ones are kept: what a broker stamps on a message
// comes last.
const maxUserProperties = 1000

// parseProperties reads the properties up to the end of the cursor's body. text is a copy of that
// body.
func (m *received) parseProperties(c *cursor, text string) {
	p := &m.properties
	p.User = m.user[:0]
	stringAt := func() string {
		field := c.bytes()
		return text[c.at-len(field) : c.at]
	}
	for !c.bad && c.at < len(c.body) {
		switch c.byte() {
		case packets.PropPayloadFormat:
			m.format = c.byte()
			p.PayloadFormat = &m.format
		case packets.PropMessageExpiry:
			m.expiry = c.uint32()
			p.MessageExpiry = &m.expiry
		case packets.PropContentType:
			p.ContentType = stringAt()
		case packets.PropResponseTopic:
			p.ResponseTopic = stringAt()
		case packets.PropCorrelationData:
			p.CorrelationData = c.bytes()
		case packets.PropSubscriptionIdentifier:
			c.length() // it is not needed
		case packets.PropUser:
			key, value := stringAt(), stringAt()
			if len(p.User) == maxUserProperties {
				p.User = p.User[1:]
			}
			p.User = append(p.User, UserProperty{Key: key, Value: value})
		default:
			// a topic alias, which this client does not allow, or a property that a PUBLISH cannot
			// have
			c.bad = true
		}
	}
}

// cursor reads the fields of a packet. After the first malformed field, bad stays true.
type cursor struct {
	body []byte
	at   int
	bad  bool
}

func (c *cursor) next(n int) []byte {
	if c.bad || n < 0 || n > len(c.body)-c.at {
		c.bad = true
		return nil
	}
	taken := c.body[c.at : c.at+n : c.at+n]
	c.at += n
	return taken
}

func (c *cursor) byte() byte {
	if b := c.next(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if b := c.next(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if b := c.next(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// bytes reads a field that begins with its length, in two bytes. It returns nil only for a
// malformed field, not for an empty one.
func (c *cursor) bytes() []byte { return c.next(int(c.uint16())) }

// length reads a variable byte integer.
func (c *cursor) length() (n int) {
	for shift := 0; shift < 28; shift += 7 {
		b := c.byte()
		n |= int(b&127) << shift
		if b < 128 {
			return n
		}
	}
	c.bad = true
	return 0
}
