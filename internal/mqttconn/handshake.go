package mqttconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// handshake sends CONNECT and reads the CONNACK. It sets the Maximum Packet Size of the CONNECT to
// maxPacket.
func handshake(ctx context.Context, network net.Conn, reader *bufio.Reader,
	connect *packets.Connect, maxPacket int,
) (*packets.Connack, error) {
	stop := context.AfterFunc(ctx, func() { _ = network.SetDeadline(time.Unix(1, 0)) })
	connack, err := exchange(network, reader, connect, maxPacket)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	return connack, err
}

func exchange(network net.Conn, reader *bufio.Reader, connect *packets.Connect,
	maxPacket int,
) (*packets.Connack, error) {
	if connect.Properties == nil {
		connect.Properties = &packets.Properties{}
	}
	limit := uint32(maxPacket)
	connect.ProtocolName, connect.ProtocolVersion, connect.Properties.MaximumPacketSize = "MQTT", 5,
		&limit
	if _, err := connect.WriteTo(network); err != nil {
		return nil, err
	}
	packet, err := ReadPacket(reader, maxPacket)
	if err != nil {
		return nil, err
	}
	connack, ok := packet.Content.(*packets.Connack)
	switch {
	case !ok:
		return nil, fmt.Errorf("mqtt: %s instead of CONNACK", packet.PacketType())
	case connack.ReasonCode >= 0x80:
		return nil, &ReasonCodeError{
			Reason: connack.ReasonCode,
			Text:   connack.Properties.ReasonString,
		}
	case connack.Properties.ReceiveMaximum != nil && *connack.Properties.ReceiveMaximum == 0:
		return nil, errors.New("mqtt: CONNACK with Receive Maximum 0")
	}
	return connack, nil
}

// granted is what a broker grants a connection.
type granted struct {
	keepAlive      time.Duration
	maxPacket      int // bytes; math.MaxInt without a limit
	receiveMaximum int // messages at QoS 1 in flight
}

func grantedBy(connack *packets.Connack, connect *packets.Connect) granted {
	properties := connack.Properties
	g := granted{time.Duration(connect.KeepAlive) * time.Second, math.MaxInt, math.MaxUint16}
	if properties.ServerKeepAlive != nil {
		g.keepAlive = time.Duration(*properties.ServerKeepAlive) * time.Second
	}
	if properties.MaximumPacketSize != nil {
		g.maxPacket = int(*properties.MaximumPacketSize)
	}
	if properties.ReceiveMaximum != nil {
		g.receiveMaximum = int(*properties.ReceiveMaximum)
	}
	return g
}
