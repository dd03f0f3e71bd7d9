package mqttfront

import (
	"context"
	"errors"

	"github.com/eclipse/paho.golang/paho"
)

// Driver is what differs between brokers: who published, who went away, and how to send somebody away. Its methods are safe
// for concurrent use.
type Driver interface {
	// Origin returns what the broker says of a request beyond the MQTT standard.
	Origin(request *paho.Publish) Origin
	// Departures calls gone for each client that the broker says has disconnected, until the context ends. It may repeat
	// itself. An error means that the broker cannot be watched now; the caller tries again.
	Departures(ctx context.Context, gone func(Departure)) error
	// Disconnect sends a publisher away. The error wraps ErrUnsupported where the broker offers no way.
	Disconnect(ctx context.Context, publisher Publisher) error
	// TrustedIdentity reports whether the identity of requests is the broker's word rather than the client's.
	TrustedIdentity() bool
}

// Publisher is who published a request, as the broker vouches for.
type Publisher struct {
	ClientID string
	Username string // empty when the broker does not say
}

// Origin is what a broker says of a request.
type Origin struct {
	// Time orders the events of one client by the broker's own reckoning; 0 is unknown.
	Time int64
	// QoS is that with which the client published, where the broker tells; 0 is what the message was delivered with.
	QoS byte
}

// Departure is a client's end.
type Departure struct {
	ClientID string
	Everyone bool  // every client, for instance because the broker was started anew
	Time     int64 // in the broker's own reckoning, comparable with Origin.Time
}

// ErrUnsupported says that a broker offers no way to do something.
var ErrUnsupported = errors.New("not supported by this broker")

// NoDriver is for brokers that nothing is known of. Watches end by PUBACK 0x10, where the broker sends it, by STOP, or by
// their time to live.
type NoDriver struct{}

// Origin implements Driver.
func (NoDriver) Origin(*paho.Publish) Origin { return Origin{} }

// Departures implements Driver.
func (NoDriver) Departures(ctx context.Context, _ func(Departure)) error {
	<-ctx.Done()
	return nil
}

// Disconnect implements Driver.
func (NoDriver) Disconnect(context.Context, Publisher) error { return ErrUnsupported }

// TrustedIdentity implements Driver.
func (NoDriver) TrustedIdentity() bool { return false }
