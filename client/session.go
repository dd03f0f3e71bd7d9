package client

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
)

// session is one connection to the broker.
type session struct {
	client *Client
	mqtt   *paho.Client
	conn   *mqttconn.Conn
	reason chan error // why it ended; the first word counts
	ctx    context.Context
	cancel context.CancelFunc
}

const (
	maxPacket = 64 << 20
	maxHeld   = 64 << 20
)

// connect connects and subscribes. Nothing of a session survives on the broker: what was under way is sent again.
func (c *Client) connect(ctx context.Context) (*session, error) {
	network, err := c.dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{client: c, conn: mqttconn.NewConn(network, maxPacket, maxHeld), reason: make(chan error, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mqtt = paho.NewClient(paho.ClientConfig{
		Conn: s.conn, PingHandler: &mqttconn.Pinger{}, PacketTimeout: c.config.Timeout,
		OnPublishReceived:  []func(paho.PublishReceived) (bool, error){s.received},
		OnClientError:      s.ended,
		OnServerDisconnect: func(d *paho.Disconnect) { s.ended(&mqttconn.Refusal{Reason: d.ReasonCode}) },
	})
	receiveMaximum := uint16(65535)
	connack, err := s.mqtt.Connect(ctx, &paho.Connect{
		ClientID: c.config.ClientID, CleanStart: true, KeepAlive: uint16(c.config.KeepAlive / time.Second),
		Username: c.config.Username, UsernameFlag: c.config.Username != "", Password: c.config.Password, PasswordFlag: c.config.Password != nil,
		Properties: &paho.ConnectProperties{ReceiveMaximum: &receiveMaximum, RequestProblemInfo: true},
	})
	if err != nil {
		s.cancel()
		_ = s.conn.Close() // the error that counts is the other
		if connack != nil {
			err = &mqttconn.Refusal{Reason: connack.ReasonCode}
		}
		return nil, err
	}
	_, err = s.mqtt.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
		{Topic: c.responseTopic, QoS: 1},
		{Topic: notificationPrefix + base16(c.config.ClientID) + "/command/notify/#", QoS: 1},
	}})
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func base16(text string) string { return strings.ToUpper(hex.EncodeToString([]byte(text))) }

func (s *session) ended(err error) {
	select {
	case s.reason <- err:
	default:
	}
}

// wait returns why the session ended.
func (s *session) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ErrClosed
	case err := <-s.reason:
		return err
	case <-s.mqtt.Done():
		select {
		case err := <-s.reason:
			return err
		case <-time.After(time.Second): // paho's callbacks come after the end
			return errors.New("the connection ended")
		}
	}
}

func (s *session) close() {
	s.cancel()
	_ = s.mqtt.Disconnect(&paho.Disconnect{}) // an error means that it is disconnected already
	<-s.mqtt.Done()
	_ = s.conn.Close()
}

// received takes a reply or a notification. It must not block: paho handles one message after the other.
func (s *session) received(p paho.PublishReceived) (bool, error) {
	s.conn.Release(s.conn.TakeSize())
	if p.Packet.Topic == s.client.responseTopic {
		s.client.answered(p.Packet)
	} else if rest, ok := strings.CutPrefix(p.Packet.Topic, notificationPrefix); ok {
		s.client.notified(rest, p.Packet)
	}
	return true, nil
}

// resume makes the session the one that commands use. What is under way is sent again, in order, and watches are made anew:
// the store has ended them with the old connection.
func (s *session) resume() {
	c := s.client
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.failure = s, nil
	close(c.changed)
	c.changed = make(chan struct{})
	for key, watchers := range c.watchers {
		for _, w := range watchers {
			if w.established {
				w.gap()
			}
		}
		if watchers[0].established {
			c.watchAgain(key)
		}
	}
	for _, waiting := range c.order {
		s.send(waiting)
	}
}

// send publishes a request without waiting. What the broker says of it counts only when it refuses.
func (s *session) send(waiting *call) {
	go func() { // ends with the session at the latest
		response, err := s.mqtt.Publish(s.ctx, waiting.publish)
		if response != nil && response.ReasonCode >= 0x80 {
			waiting.finish(answer{err: &refusedError{reason: response.ReasonCode, err: err}})
		}
	}()
}
