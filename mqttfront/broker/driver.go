// Package broker defines Driver, the interface to what differs between MQTT brokers, and the queues
// that call it.
package broker

import (
	"context"
	"errors"

	"holdfast/internal/mqttconn"
)

// Driver provides what the MQTT standard does not: when and with which QoS a request was published,
// which clients have disconnected, a way to disconnect a client, and whether the identity in
// requests can be trusted. Its methods are safe for concurrent use.
type Driver interface {
	// Origin returns what the broker reports about a request beyond the MQTT standard.
	Origin(request *mqttconn.Publish) Origin
	// WatchDisconnects calls disconnected for each client that the broker reports as disconnected.
	// It may report one disconnect several times. It returns an error if the broker cannot be
	// watched now: the caller tries again. When the context ends, it returns nil, or an error that
	// does not matter. Only one call runs at a time.
	WatchDisconnects(ctx context.Context, disconnected func(Disconnect)) error
	// Kick disconnects a publisher. Some brokers can only disconnect all clients of its user name.
	// The error wraps ErrUnsupported if the broker can do neither. It is nil if the broker knows
	// that the publisher is not connected any more.
	Kick(ctx context.Context, publisher Publisher) error
	// TrustedIdentity reports whether the broker vouches for the identity in requests. If not, it
	// is the client's own claim.
	TrustedIdentity() bool
}

// NotificationSubscriber is a Driver that can subscribe a client to its notifications: some client
// libraries do not subscribe. Its method is safe for concurrent use.
type NotificationSubscriber interface {
	// SubscribeNotifications subscribes a connected client to a topic filter, unless the client has
	// a subscription by which it receives its notifications. created reports whether a subscription
	// was added: it is false, without an error, for a client that the broker does not know. The
	// error wraps ErrUnsupported if the driver is not configured for that.
	SubscribeNotifications(ctx context.Context, clientID, filter string) (created bool, err error)
}

// Publisher is the client that published a request. Its ids are not verified unless
// Driver.TrustedIdentity is true.
type Publisher struct {
	ClientID string
	Username string // empty if the broker does not report it
}

// Origin is what a broker reports about a request.
type Origin struct {
	// Time orders the events of one client. Its unit is the driver's: it can be compared with
	// Disconnect.Time of the same driver only. 0 is unknown.
	Time int64
	// QoS is the QoS with which the client published, if it was above 0 and the broker reports it;
	// otherwise 0. The QoS with which the request was delivered is never higher, and is checked in
	// any case.
	QoS byte
}

// Disconnect is the end of a client's connection.
type Disconnect struct {
	ClientID string
	// all clients that were connected before Time, for instance because the broker restarted
	Everyone bool
	Time     int64 // compares with Origin.Time
}

// ErrUnsupported is the error for what a broker has no way to do.
var ErrUnsupported = errors.New("not supported by this broker")

// NoDriver is the Driver for unknown brokers. It reports no disconnects. Watches end by STOP, by
// their time to live, or when the broker answers a notification with PUBACK 0x10 (no matching
// subscribers).
type NoDriver struct{}

// Origin implements Driver.
func (NoDriver) Origin(*mqttconn.Publish) Origin { return Origin{} }

// WatchDisconnects implements Driver.
func (NoDriver) WatchDisconnects(ctx context.Context, _ func(Disconnect)) error {
	<-ctx.Done()
	return nil
}

// Kick implements Driver.
func (NoDriver) Kick(context.Context, Publisher) error { return ErrUnsupported }

// TrustedIdentity implements Driver.
func (NoDriver) TrustedIdentity() bool { return false }
