package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
)

// packetTimeout bounds the wait for the answer to a SUBSCRIBE, which may come after all retained messages, however long these take. If the broker sends
// nothing, the keep-alive ends the connection earlier.
const packetTimeout = 10 * time.Minute

// passConn is the connection of one pass.
type passConn struct {
	conn   *mqttconn.Conn
	client *paho.Client
	ended  chan error // capacity 1: why the connection ended; only the first reason is kept
}

// connectToCompare connects. received is called with each message that the broker sends.
func connectToCompare(ctx context.Context, login *mqttconn.Login, clientID string, maxPacket int, received func(mqttconn.Message)) (*passConn, error) {
	ctx, cancel := context.WithTimeout(ctx, login.Timeout)
	defer cancel()
	network, err := login.Dialer.DialSame(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &passConn{conn: mqttconn.NewConn(network, mqttconn.Receiver{MaxPacket: maxPacket, Publish: received}), ended: make(chan error, 1)}
	c.client = paho.NewClient(paho.ClientConfig{
		Conn: c.conn, Session: mqttconn.NewSession(), PingHandler: &mqttconn.Pinger{}, PacketTimeout: packetTimeout, OnClientError: c.end,
		OnServerDisconnect: func(d *paho.Disconnect) { c.end(&mqttconn.ReasonCodeError{Reason: d.ReasonCode}) },
	})
	password, packet := login.PasswordNow(), uint32(maxPacket)
	connack, err := c.client.Connect(ctx, &paho.Connect{
		ClientID: clientID, CleanStart: true, KeepAlive: uint16(login.KeepAlive / time.Second),
		Username: login.Username, UsernameFlag: login.Username != "", Password: password, PasswordFlag: password != nil,
		Properties: &paho.ConnectProperties{MaximumPacketSize: &packet},
	})
	if err == nil && connack.Properties != nil && !connack.Properties.RetainAvailable {
		_ = c.client.Disconnect(&paho.Disconnect{}) // the error below counts
		<-c.client.Done()
		err = errNoRetained
	}
	if err != nil {
		if connack != nil && connack.ReasonCode != 0 {
			err = &mqttconn.ReasonCodeError{Reason: connack.ReasonCode}
		}
		return nil, errors.Join(fmt.Errorf("connect as %s: %w", clientID, err), c.conn.Close())
	}
	return c, nil
}

var errNoRetained = errors.New("the broker keeps no retained messages")

// close ends the connection with a DISCONNECT if that is still possible.
func (c *passConn) close() {
	c.conn.Hurry()
	_ = c.client.Disconnect(&paho.Disconnect{}) // an error means that the connection is gone already
	<-c.client.Done()
	_ = c.conn.Close()
}

func (c *passConn) end(err error) {
	select {
	case c.ended <- err:
	default:
	}
}

// reason returns why the connection ended.
func (c *passConn) reason() error {
	select {
	case err := <-c.ended:
		return err
	case <-time.After(step): // paho calls OnClientError and OnServerDisconnect in new goroutines after Done is closed
		return errors.New("the connection ended")
	}
}

// refusedSubscription is a topic filter to which the broker does not let this node subscribe.
type refusedSubscription struct {
	filter string
	reason byte // reason code in the SUBACK
}

// subscribe has the broker send the retained messages of the mirrors between two retained markers, and then a third marker that is not retained.
// It returns the subscriptions that the broker refuses.
func (c *passConn) subscribe(ctx context.Context, markerTopics string, prefixes []string) (refused []refusedSubscription, err error) {
	markers := [...]string{markerTopics + firstMarker, markerTopics + lastMarker}
	for _, marker := range markers {
		response, err := c.client.Publish(ctx, &paho.Publish{Topic: marker + "marker", QoS: 1, Retain: true, Payload: []byte{'1'}})
		if response == nil { // a refusal is a response, too; if no marker arrives, the pass is blind
			return nil, fmt.Errorf("publish a marker: %w", err)
		}
	}
	// At QoS 0, because at a higher one brokers bound the number of messages that wait for a client.
	var subscriptions []paho.SubscribeOptions
	for _, prefix := range slices.Concat(markers[:1], prefixes, markers[1:]) {
		subscriptions = append(subscriptions, paho.SubscribeOptions{Topic: prefix + "#"})
	}
	suback, err := c.client.Subscribe(ctx, &paho.Subscribe{Subscriptions: subscriptions})
	if suback == nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if err := mqttconn.CheckReasons(suback, subscriptions); err != nil {
		return nil, err
	}
	for i, granted := range suback.Reasons {
		if granted >= 0x80 {
			refused = append(refused, refusedSubscription{subscriptions[i].Topic, granted})
		}
	}
	// At QoS 0: a broker that drops retained messages may drop a PUBACK as well.
	if _, err := c.client.Publish(ctx, &paho.Publish{Topic: markers[1] + "marker", Payload: []byte{'1'}}); err != nil {
		return nil, fmt.Errorf("publish a marker: %w", err)
	}
	return refused, nil
}
