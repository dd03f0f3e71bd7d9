package mqttconn

import (
	"context"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// Login is how a process connects to the broker. It is safe for concurrent use.
type Login struct {
	Dialer   *Dialer
	Username string // empty is a login without one
	// Password is asked for each connection, so that it may change; nil is a login without one. It
	// must be safe for concurrent use.
	Password func() []byte
	// of MQTT, below 65536 s; a fraction of a second is cut off, and 0 turns keep-alive off
	KeepAlive time.Duration
	Timeout   time.Duration // bounds a connection attempt
	Window    int           // most messages in flight on a Publisher; must be positive
}

// PasswordNow returns the password as it is now, nil for a login without one.
func (l *Login) PasswordNow() []byte {
	if l.Password == nil {
		return nil
	}
	return l.Password()
}

// Packet returns a CONNECT packet.
func (l *Login) Packet(clientID string, cleanStart bool) *packets.Connect {
	password := l.PasswordNow()
	return &packets.Connect{
		ClientID: clientID, CleanStart: cleanStart, KeepAlive: uint16(l.KeepAlive / time.Second),
		Username: l.Username, UsernameFlag: l.Username != "", Password: password,
		PasswordFlag: password != nil,
		Properties:   &packets.Properties{},
	}
}

// Publisher connects under a client id, with a clean start, only to publish. It goes to the address
// that the dialer has come to, and to no other one: the node's own session chooses the broker, and
// clients of that broker do not receive what is published at another one.
func (l *Login) Publisher(ctx context.Context, clientID string) (*Publisher, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	conn, err := l.Dialer.DialSame(ctx)
	if err != nil {
		return nil, err
	}
	publisher, err := NewPublisher(ctx, conn, l.Packet(clientID, true), l.Window)
	if err != nil {
		return nil, fmt.Errorf("connect as %s: %w", clientID, err)
	}
	return publisher, nil
}
