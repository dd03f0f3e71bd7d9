package mqttconn

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/eclipse/paho.golang/packets"
)

// maxRemainingLength is the largest length that MQTT can express.
const maxRemainingLength = 1<<28 - 1

// PublishSize returns the size of the packet on the wire, which is what a Maximum Packet Size
// counts. It returns false if the packet cannot be encoded at all. paho's encoder would truncate a
// long string without an error.
func PublishSize(p *packets.Publish) (int, bool) {
	properties, ok := propertiesSize(p.Properties)
	size := remainingLength(p, properties)
	return 1 + lengthSize(size) + size, ok && len(p.Topic) <= math.MaxUint16 &&
		size <= maxRemainingLength
}

func remainingLength(p *packets.Publish, properties int) int {
	size := 2 + len(p.Topic) + lengthSize(properties) + properties + len(p.Payload)
	if p.QoS > 0 {
		size += 2
	}
	return size
}

func lengthSize(n int) int {
	switch {
	case n < 1<<7:
		return 1
	case n < 1<<14:
		return 2
	case n < 1<<21:
		return 3
	default:
		return 4
	}
}

func propertiesSize(p *packets.Properties) (size int, ok bool) {
	if p == nil {
		return 0, true
	}
	ok = true
	text := func(length int) {
		ok = ok && length <= math.MaxUint16
		size += 2 + length
	}
	if p.PayloadFormat != nil {
		size += 2
	}
	if p.MessageExpiry != nil {
		size += 5
	}
	if p.ContentType != "" {
		size++
		text(len(p.ContentType))
	}
	if p.ResponseTopic != "" {
		size++
		text(len(p.ResponseTopic))
	}
	if p.CorrelationData != nil {
		size++
		text(len(p.CorrelationData))
	}
	for _, user := range p.User {
		size++
		text(len(user.Key))
		text(len(user.Value))
	}
	return size, ok
}

// AppendPublish appends the encoded packet, for which PublishSize must have returned true. It
// writes only the properties that publishers of this project set. Unlike paho's encoder, it also
// writes an empty Correlation Data that is not nil.
func AppendPublish(dst []byte, p *packets.Publish) []byte {
	header := packets.PUBLISH<<4 | p.QoS<<1
	if p.Duplicate {
		header |= 1 << 3
	}
	if p.Retain {
		header |= 1
	}
	properties, _ := propertiesSize(p.Properties)
	dst = appendLength(append(dst, header), remainingLength(p, properties))
	dst = appendText(dst, p.Topic)
	if p.QoS > 0 {
		dst = binary.BigEndian.AppendUint16(dst, p.PacketID)
	}
	dst = appendProperties(appendLength(dst, properties), p.Properties)
	return append(dst, p.Payload...)
}

func appendProperties(dst []byte, p *packets.Properties) []byte {
	if p == nil {
		return dst
	}
	if p.PayloadFormat != nil {
		dst = append(dst, packets.PropPayloadFormat, *p.PayloadFormat)
	}
	if p.MessageExpiry != nil {
		dst = binary.BigEndian.AppendUint32(append(dst, packets.PropMessageExpiry),
			*p.MessageExpiry)
	}
	if p.ContentType != "" {
		dst = appendText(append(dst, packets.PropContentType), p.ContentType)
	}
	if p.ResponseTopic != "" {
		dst = appendText(append(dst, packets.PropResponseTopic), p.ResponseTopic)
	}
	if p.CorrelationData != nil {
		dst = appendText(append(dst, packets.PropCorrelationData), p.CorrelationData)
	}
	for _, user := range p.User {
		dst = appendText(appendText(append(dst, packets.PropUser), user.Key), user.Value)
	}
	return dst
}

func appendLength(dst []byte, n int) []byte {
	for n > 127 {
		dst = append(dst, byte(n)|128)
		n >>= 7
	}
	return append(dst, byte(n))
}

func appendText[T ~string | ~[]byte](dst []byte, text T) []byte {
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(text))), text...)
}

// ErrPacketTooLarge says that a received packet is larger than the reader accepts.
var ErrPacketTooLarge = errors.New("mqtt: received packet exceeds the limit")

var errMalformedLength = errors.New("mqtt: malformed remaining length")

// peekHeader returns the size of the next packet's fixed header and that of the whole packet.
func peekHeader(r *bufio.Reader, limit int) (header, size int, err error) {
	for header = 2; ; header++ {
		start, err := r.Peek(header)
		if err != nil {
			return 0, 0, err
		}
		if start[header-1] >= 128 {
			if header == 5 {
				return 0, 0, errMalformedLength
			}
			continue
		}
		length := 0
		for i, b := range start[1:] {
			length |= int(b&127) << (7 * i)
		}
		if header+length > limit {
			return 0, 0, fmt.Errorf("%w: %d bytes", ErrPacketTooLarge, header+length)
		}
		return header, header + length, nil
	}
}

// ReadPacket is paho's ReadPacket with a limit: it checks the size of the whole packet before it
// allocates anything. An io.EOF means that nothing came, not that a packet is too short for its
// fields. A DISCONNECT without fields has the reason code 0.
func ReadPacket(r *bufio.Reader, limit int) (*packets.ControlPacket, error) {
	header, size, err := peekHeader(r, limit)
	if err != nil {
		return nil, err
	}
	if first, err := r.Peek(1); err == nil && first[0]>>4 == packets.DISCONNECT && size == header {
		_, err := r.Discard(size)
		packet := packets.NewControlPacket(packets.DISCONNECT)
		packet.Content = &packets.Disconnect{Properties: &packets.Properties{}}
		return packet, err
	}
	packet, err := packets.ReadPacket(r)
	if errors.Is(err, io.EOF) {
		return nil, errMalformed
	}
	return packet, err
}
