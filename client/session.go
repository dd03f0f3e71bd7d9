package client

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"

	"holdfast/internal/mqttconn"
)

// session is one connection to the broker.
type session struct {
	client    *Client
	mqtt      *paho.Client
	conn      *mqttconn.Conn
	state     *state.State // of paho: packet ids, and who waits for which PUBACK
	maxPacket int          // that the broker accepts
	began     time.Time
	reason    chan error // why it ended; the first word counts
	ctx       context.Context
	cancel    context.CancelFunc
	sending   sync.WaitGroup

	queue []*call       // to be sent, in order; guarded by Client.mu
	wake  chan struct{} // has room for one
}

const (
	maxPacket = 64 << 20
	maxHeld   = 64 << 20
)

// connect connects to one of the brokers and subscribes. Nothing of a session survives on the broker: what was under way is
// sent again.
func (c *Client) connect(ctx context.Context) (*session, error) {
	network, err := c.dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		client: c, conn: mqttconn.NewConn(network, maxPacket, maxHeld), state: state.NewInMemory(), maxPacket: math.MaxInt,
		began: time.Now(), reason: make(chan error, 1), wake: make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mqtt = paho.NewClient(paho.ClientConfig{
		Conn: s.conn, Session: s.state, PingHandler: &mqttconn.Pinger{}, PacketTimeout: c.config.Timeout,
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
	if limit := connack.Properties.MaximumPacketSize; limit != nil {
		s.maxPacket = int(*limit)
	}
	err = mqttconn.Subscribe(ctx, s.mqtt,
		paho.SubscribeOptions{Topic: c.responseTopic, QoS: 1},
		paho.SubscribeOptions{Topic: notificationPrefix + base16(c.config.ClientID) + "/command/notify/#", QoS: 1})
	if err != nil {
		s.close()
		return nil, err
	}
	s.sending.Go(s.sendAll)
	s.sending.Go(s.renewWatches)
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
	s.conn.Hurry()
	_ = s.mqtt.Disconnect(&paho.Disconnect{}) // an error means that it is disconnected already
	<-s.mqtt.Done()
	_ = s.conn.Close()
	s.sending.Wait()
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
		var established []*Watcher
		for _, w := range watchers {
			if w.established {
				w.gap()
				established = append(established, w)
			}
		}
		c.watchAgain(key, established)
	}
	for _, waiting := range c.order {
		if waiting.sent && time.Since(waiting.began) > remembered {
			waiting.finish(answer{err: ErrOutcomeUnknown}) // a copy could take effect a second time
			continue
		}
		if waiting.watches {
			c.renew(waiting)
		}
		s.enqueue(waiting)
	}
}

// remembered is how long the store knows a request again, at most.
const remembered = 12 * time.Minute

// renewWatches says again what is watched, now and then: the store may be told to end watches that are not renewed.
func (s *session) renewWatches() {
	ticker := time.NewTicker(s.client.config.WatchRenewal)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		s.client.mu.Lock()
		if s.client.session == s {
			for key := range s.client.watchers {
				s.client.watchAgain(key, nil)
			}
		}
		s.client.mu.Unlock()
	}
}

// enqueue sends a request after those that were enqueued before. Client.mu is held.
func (s *session) enqueue(waiting *call) {
	s.queue = append(s.queue, waiting)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sendAll sends what is enqueued, in order, until the session ends. What was given up meanwhile is not sent any more.
func (s *session) sendAll() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		}
		s.client.mu.Lock()
		queue := s.queue
		s.queue = nil
		s.client.mu.Unlock()
		for _, waiting := range queue {
			if publish := s.client.toSend(waiting); publish != nil {
				s.send(waiting, publish)
			}
		}
	}
}

// toSend returns what is to be published for a request, or nil when nobody waits for it any more.
func (c *Client) toSend(waiting *call) *paho.Publish {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending[waiting.correlation] != waiting {
		return nil
	}
	waiting.sent = true
	return waiting.publish
}

// send publishes a request, and has somebody look at what the broker says of it.
func (s *session) send(waiting *call, publish *paho.Publish) {
	packet := publish.Packet()
	if size, ok := mqttconn.PublishSize(packet); !ok || size > s.maxPacket {
		waiting.finish(answer{err: fmt.Errorf("%w: %w", ErrNotSent, mqttconn.ErrTooLarge)})
		return
	}
	acknowledged := make(chan packets.ControlPacket, 1)
	if err := s.state.AddToSession(s.ctx, packet, acknowledged); err != nil {
		return // the session ends; the next one sends it again
	}
	if _, err := packet.WriteTo(s.conn); err != nil {
		return
	}
	s.sending.Go(func() {
		select {
		case <-s.ctx.Done():
		case ack := <-acknowledged:
			if puback, ok := ack.Content.(*packets.Puback); ok {
				s.acknowledged(waiting, puback.ReasonCode)
			}
		}
	})
}

// resendPause is how long to wait when nobody listens on the invoke topic, as for a moment after the broker was restarted.
const resendPause = 100 * time.Millisecond

func (s *session) acknowledged(waiting *call, reason byte) {
	switch {
	case reason >= 0x80:
		waiting.finish(answer{err: &refusedError{reason: reason}})
	case reason == mqttconn.ReasonNoMatchingSubscriber:
		if pause(s.ctx, resendPause) {
			s.client.mu.Lock()
			defer s.client.mu.Unlock()
			s.enqueue(waiting)
		}
	}
}
