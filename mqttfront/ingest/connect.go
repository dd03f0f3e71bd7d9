package ingest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
)

// connect connects once, and receives until the connection ends. It returns the address of the broker, and why the connection ended. The address is empty
// if the attempt failed.
func (s *session) connect(ctx context.Context) (broker string, err error) {
	login := s.env.Login
	dialing, cancel := context.WithTimeout(ctx, login.Timeout)
	defer cancel()
	since, resume := s.resumePoint()
	if !resume && s.carriesRequests && !s.cleanStart {
		if err := s.endSession(dialing); err != nil {
			return "", err
		}
	}
	network, err := s.dial(dialing)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	if !resume {
		since = time.Now()
	}
	c := &connection{traits: s.traits, subscribed: s.subscribed, since: since, maxQueuedAge: time.Since(since), pauses: newPauseDetector(), handlerCtx: ctx, reason: make(chan error, 1)}
	s.current.Store(c)
	defer s.current.Store(nil)
	whileConnected, stop := context.WithCancel(ctx)
	var detecting sync.WaitGroup
	detecting.Go(func() { c.pauses.run(whileConnected, s.config.ProbeInterval, c.handleGap) })
	defer detecting.Wait()
	defer stop()
	c.conn = mqttconn.NewConn(network, mqttconn.Receiver{MaxPacket: MaxPacket, Publish: c.received, Idle: s.handler.Flush, CoalescingDelay: s.handler.CoalescingDelay})
	c.acks = mqttconn.NewAcks(c.conn)
	c.client = paho.NewClient(paho.ClientConfig{
		Conn: c.conn, Session: mqttconn.NewSession(), PingHandler: &mqttconn.Pinger{}, PacketTimeout: max(login.Timeout, s.config.SessionExpiry),
		OnClientError:      c.end,
		OnServerDisconnect: func(d *paho.Disconnect) { c.end(&mqttconn.ReasonCodeError{Reason: d.ReasonCode}) },
	})
	c.stale.Store(!resume) // until it is known that the broker has nothing of an old session
	connack, err := c.client.Connect(dialing, s.packet(resume))
	if err != nil {
		_ = c.conn.Close() // the earlier error is returned
		if connack != nil {
			err = &mqttconn.ReasonCodeError{Reason: connack.ReasonCode}
		}
		return "", fmt.Errorf("connect as %s: %w", s.clientID, err)
	}
	if connack.SessionPresent && !resume {
		s.cleanStart = true
		c.close()
		return "", errSessionKept
	}
	if !resume {
		c.stale.Store(false)
	}
	s.probes.onConnack(resume)
	if !connack.SessionPresent && s.carriesRequests {
		s.handler.SessionBegun()
	}
	subscribing := dialing
	if connack.SessionPresent { // the session's queued messages may come before the SUBACK, and take long
		subscribing = ctx
		if s.shared {
			s.setStatus(true, "connected")
		}
	}
	err = c.serve(ctx, subscribing)
	c.close()
	return network.RemoteAddr().String(), err
}

// dial opens the network connection. The node's own session chooses the broker, and the leader's goes where it is.
func (s *session) dial(ctx context.Context) (net.Conn, error) {
	if s.shared {
		return s.env.Login.Dialer.DialSame(ctx)
	}
	network, place, err := s.env.Login.Dialer.DialAny(ctx)
	if err == nil {
		s.status.setPlace(place)
	}
	return network, err
}

// subscribed is called when the broker has acknowledged the subscriptions: the session is up.
func (s *session) subscribed() {
	s.status.setSubscribed()
	s.setStatus(true, "connected")
	s.env.Log.Info("broker session up", "client", s.clientID)
}

// errSessionKept says that the broker still had the session that endSession had ended.
var errSessionKept = errors.New("the broker kept a session that was ended: asking for a clean start")

// endSession ends a session at the broker, by a connection with a clean start and without a session expiry. The next connection has no clean start.
// Mosquitto does not save a session to disk that began with a clean start: the messages queued in it would be lost when the broker restarts.
func (s *session) endSession(ctx context.Context) error {
	publisher, err := s.env.Login.Publisher(ctx, s.clientID)
	if err != nil {
		return err
	}
	publisher.Close()
	return nil
}

// packet returns the CONNECT packet.
func (s *session) packet(resume bool) *paho.Connect {
	login := s.env.Login
	password := login.PasswordNow()
	age, receive, packet := s.probes.sessionExpiry(), uint16(65535), uint32(MaxPacket)
	return &paho.Connect{
		ClientID: s.clientID, CleanStart: !resume && (s.cleanStart || !s.carriesRequests), KeepAlive: uint16(login.KeepAlive / time.Second),
		Username: login.Username, UsernameFlag: login.Username != "", Password: password, PasswordFlag: password != nil,
		Properties: &paho.ConnectProperties{
			SessionExpiryInterval: &age, ReceiveMaximum: &receive, MaximumPacketSize: &packet, RequestProblemInfo: true,
		},
	}
}
