package session

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
)

// connect connects once, and receives until the connection ends. It returns the address of the broker, and why the
// connection ended. The address is empty if the attempt failed.
func (s *session) connect(ctx context.Context) (broker string, err error) {
	login := s.env.Login
	dialing, cancel := context.WithTimeout(ctx, login.Timeout)
	defer cancel()
	network, err := s.dial(dialing)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	c := &connection{traits: s.traits, subscribed: s.subscribed, receivedAfter: s.horizon(), reason: make(chan error, 1), confirmed: make(chan struct{})}
	c.handlerCtx, c.endHandling = context.WithCancel(ctx)
	defer c.endHandling()
	receiver := mqttconn.Receiver{MaxPacket: MaxPacket, Publish: c.received, DelaysAcks: !s.bringsRequests()}
	if s.bringsRequests() {
		receiver.Idle, receiver.CoalescingDelay = s.handler.Flush, s.handler.CoalescingDelay
	}
	c.conn = mqttconn.NewConn(network, receiver)
	c.acks = mqttconn.NewAcks(c.conn)
	s.current.Store(c)
	defer s.current.Store(nil)
	c.client = paho.NewClient(paho.ClientConfig{
		Conn: c.conn, Session: mqttconn.NewSession(), PingHandler: &mqttconn.Pinger{}, PacketTimeout: max(login.Timeout, s.config.SessionExpiry),
		OnClientError:      c.end,
		OnServerDisconnect: func(d *paho.Disconnect) { c.end(&mqttconn.ReasonCodeError{Reason: d.ReasonCode}) },
	})
	began := time.Now()
	connack, err := c.client.Connect(dialing, s.packet())
	if err != nil {
		_ = c.conn.Close() // the earlier error is returned
		if connack != nil {
			err = &mqttconn.ReasonCodeError{Reason: connack.ReasonCode}
		}
		return "", fmt.Errorf("connect as %s: %w", s.clientID, err)
	}
	c.begin(began, connack.SessionPresent)
	if s.confirm != nil { // a node that was paused on its way to the broker must not read what the leader is given
		if err := s.confirm(dialing); err != nil {
			c.close()
			return "", err
		}
	}
	close(c.confirmed)
	subscribing := dialing
	if connack.SessionPresent { // the session's queued messages may come before the SUBACK, and take long
		subscribing = ctx
	}
	err = c.serve(ctx, subscribing)
	c.close()
	return network.RemoteAddr().String(), err
}

// horizon returns a moment after which the broker received all that it has not seen acknowledged. For a node's own session it
// means nothing.
func (s *session) horizon() time.Time {
	if !s.bringsRequests() {
		return time.Time{}
	}
	logged, known := time.Now().Add(-s.log.HorizonAge()), s.probes.knownHorizon()
	if known.After(logged) {
		return known
	}
	return logged
}

// dial opens the network connection. The node's own session chooses the broker, and the cluster's goes where it is.
func (s *session) dial(ctx context.Context) (net.Conn, error) {
	if s.bringsRequests() {
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

// packet returns the CONNECT packet. The cluster's session is never begun clean: Mosquitto saves no session to disk that
// began so, and the messages queued in it would be lost when the broker restarts. A node's own session has nothing to
// keep.
func (s *session) packet() *paho.Connect {
	login := s.env.Login
	password := login.PasswordNow()
	keep, receive, packet := uint32(0), uint16(65535), uint32(MaxPacket)
	if s.bringsRequests() {
		keep = s.probes.sessionExpiry()
	}
	return &paho.Connect{
		ClientID: s.clientID, CleanStart: !s.bringsRequests(), KeepAlive: uint16(login.KeepAlive / time.Second),
		Username: login.Username, UsernameFlag: login.Username != "", Password: password, PasswordFlag: password != nil,
		Properties: &paho.ConnectProperties{
			SessionExpiryInterval: &keep, ReceiveMaximum: &receive, MaximumPacketSize: &packet, RequestProblemInfo: true,
		},
	}
}
