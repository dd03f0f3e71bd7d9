package session

import (
	"context"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
)

// connect connects once, and receives until the connection ends. It returns the address of the
// broker, and why the connection ended. The address is empty if the attempt failed.
func (s *session) connect(ctx context.Context) (broker string, err error) {
	login := s.env.Login
	dialing, cancel := context.WithTimeout(ctx, login.Timeout)
	defer cancel()
	network, err := s.dial(dialing)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	c := &connection{
		traits: s.traits, subscribed: s.subscribed, receivedAfter: s.horizon(),
		reason: make(chan error, 1),
	}
	c.handlerCtx, c.endHandling = context.WithCancel(ctx)
	defer c.endHandling()
	receiver := mqttconn.Receiver{
		MaxPacket: MaxPacket, Publish: c.received,
		DelaysAcks: !s.bringsRequests(),
	}
	if s.bringsRequests() {
		receiver.Idle, receiver.CoalescingDelay = s.handler.Flush, s.handler.CoalescingDelay
	}
	began := time.Now()
	conn, connack, err := mqttconn.Connect(dialing, network, s.packet(), receiver)
	if err != nil {
		return "", fmt.Errorf("connect as %s: %w", s.clientID, err)
	}
	c.conn, c.acks = conn, mqttconn.NewAcks(conn)
	c.begin(began, connack.SessionPresent)
	if s.confirm != nil {
		// a node that was paused on its way to the broker must not read what the leader is given
		if err := s.confirm(dialing); err != nil {
			conn.Close()
			return "", err
		}
	}
	s.current.Store(c)
	defer s.current.Store(nil)
	conn.Start()
	subscribing := dialing
	if connack.SessionPresent {
		// the session's queued messages may come before the SUBACK, and take long
		within, cancel := context.WithTimeout(ctx, max(login.Timeout, s.config.SessionExpiry))
		defer cancel()
		subscribing = within
	}
	err = c.serve(ctx, subscribing)
	c.close()
	return conn.RemoteAddr().String(), err
}

// horizon returns a moment after which the broker received all that it has not seen acknowledged.
// For a node's own session it means nothing.
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

// dial opens the network connection. The node's own session chooses the broker, and the cluster's
// goes where it is.
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

// packet returns the CONNECT packet. The cluster's session is never begun clean: Mosquitto saves no
// session to disk that began so, and the messages queued in it would be lost when the broker
// restarts. A node's own session has nothing to keep.
func (s *session) packet() *packets.Connect {
	connect := s.env.Login.Packet(s.clientID, !s.bringsRequests())
	keep, receive := uint32(0), uint16(math.MaxUint16)
	if s.bringsRequests() {
		keep = s.probes.sessionExpiry()
	}
	connect.Properties = &packets.Properties{SessionExpiryInterval: &keep, ReceiveMaximum: &receive}
	return connect
}
