package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
)

// packetTimeout bounds the wait for the answer to a SUBSCRIBE, which may come after all retained
// messages, however long these take. If the broker sends nothing, the keep-alive ends the
// connection earlier.
const packetTimeout = 10 * time.Minute

// passConn is the connection of one pass.
type passConn struct{ *mqttconn.Conn }

// connectToCompare connects. received is called with each message that the broker sends.
func connectToCompare(ctx context.Context, login *mqttconn.Login, clientID string, maxPacket int,
	received func(mqttconn.Message),
) (passConn, error) {
	ctx, cancel := context.WithTimeout(ctx, login.Timeout)
	defer cancel()
	network, err := login.Dialer.DialSame(ctx)
	if err != nil {
		return passConn{}, fmt.Errorf("connect: %w", err)
	}
	conn, connack, err := mqttconn.Connect(ctx, network, login.Packet(clientID, true),
		mqttconn.Receiver{MaxPacket: maxPacket, Publish: received})
	if err != nil {
		return passConn{}, fmt.Errorf("connect as %s: %w", clientID, err)
	}
	if available := connack.Properties.RetainAvailable; available != nil && *available == 0 {
		conn.Close()
		return passConn{}, errNoRetained
	}
	conn.Start()
	return passConn{conn}, nil
}

var errNoRetained = errors.New("the broker keeps no retained messages")

// refusedSubscription is a topic filter to which the broker does not let this node subscribe.
type refusedSubscription struct {
	filter string
	reason byte // reason code in the SUBACK
}

// subscribe has the broker send the retained messages of the mirrors between two retained markers,
// and then a third marker that is not retained. It returns the subscriptions that the broker
// refuses.
func (c passConn) subscribe(ctx context.Context, markerTopics string,
	prefixes []string,
) (refused []refusedSubscription, err error) {
	ctx, cancel := context.WithTimeout(ctx, packetTimeout)
	defer cancel()
	markers := [...]string{markerTopics + firstMarker, markerTopics + lastMarker}
	for _, marker := range markers {
		// a refusal is no error: if no marker arrives, the pass is blind
		if _, err := c.Publish(ctx,
			&mqttconn.Publish{
				Topic: marker + "marker", QoS: 1, Retain: true,
				Payload: []byte{'1'},
			}); err != nil {
			return nil, fmt.Errorf("publish a marker: %w", err)
		}
	}
	// At QoS 0, because at a higher one brokers bound the number of messages that wait for a
	// client.
	var subscriptions []packets.SubOptions
	for _, prefix := range slices.Concat(markers[:1], prefixes, markers[1:]) {
		subscriptions = append(subscriptions, packets.SubOptions{Topic: prefix + "#"})
	}
	reasons, err := c.TrySubscribe(ctx, subscriptions...)
	if err != nil {
		return nil, err
	}
	for i, granted := range reasons {
		if granted >= 0x80 {
			refused = append(refused, refusedSubscription{subscriptions[i].Topic, granted})
		}
	}
	// At QoS 0: a broker that drops retained messages may drop a PUBACK as well.
	if _, err := c.Publish(ctx,
		&mqttconn.Publish{Topic: markers[1] + "marker", Payload: []byte{'1'}}); err != nil {
		return nil, fmt.Errorf("publish a marker: %w", err)
	}
	return refused, nil
}
