package mqttfront

import (
	"fmt"
	"strings"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/role"
	"holdfast/mqttfront/wire"
)

// Config is what a Front needs to know. DefaultConfig gives a value to each field that has one; Validate says which values are allowed.
type Config struct {
	Cluster string // prefix of the MQTT client ids
	Node    string

	Addresses []mqttconn.Address
	Username  string
	// Password is asked for each connection, so that it may change; nil is a login without one. It must be safe for concurrent use.
	Password func() []byte

	Identity wire.Identity

	role.Config

	// SessionAge is how long the broker keeps the ingest session, and how old a copy of a request may be.
	SessionAge time.Duration
	// DefaultExpiry is for how long a request without a message expiry is answered.
	DefaultExpiry time.Duration
	MaxExpiry     time.Duration // bounds DefaultExpiry and the message expiry of each request
	// ProbeInterval is how often a node sends itself a message through the broker.
	ProbeInterval time.Duration
	KeepAlive     time.Duration // of MQTT; in whole seconds
	ConnectTime   time.Duration // bounds a connection attempt
	BackoffMin    time.Duration // between attempts to connect, with jitter
	BackoffMax    time.Duration

	Publishers int // publishing connections
	Window     int // messages in flight on each
	// QueueNotifications bounds the notifications that wait on one publishing connection; beyond it the oldest are dropped.
	QueueNotifications int
	QueueBytes         int // of their keys and values
}

// StaticPassword is a Password that does not change.
func StaticPassword(password string) func() []byte {
	return func() []byte { return []byte(password) }
}

// DefaultConfig returns a configuration that only lacks names and addresses.
func DefaultConfig() Config {
	return Config{
		Cluster: "holdfast", SessionAge: time.Minute, ProbeInterval: time.Second,
		DefaultExpiry: time.Minute, MaxExpiry: 10 * time.Minute, // as the protocol says
		KeepAlive: 30 * time.Second, ConnectTime: 10 * time.Second, BackoffMin: 50 * time.Millisecond, BackoffMax: 2 * time.Second,
		Publishers: 2, Window: 4096, QueueNotifications: 200_000, QueueBytes: 64 << 20,
		Config: role.DefaultConfig(),
	}
}

// decoder returns the decoder of requests. The outcome of a request is remembered beyond the time for which it is worth answering for as long as its
// client may send it again, and such a copy may then wait in a session and at a leader.
func (c *Config) decoder() wire.Decoder {
	return wire.Decoder{
		Identity: c.Identity, DefaultExpiry: c.DefaultExpiry, MaxExpiry: c.MaxExpiry,
		Margin: c.DedupMargin + c.SessionAge + c.MaxWait(),
	}
}

// Validate reports the first field that makes no sense.
func (c *Config) Validate() error {
	names := []struct{ name, value string }{{"Cluster", c.Cluster}, {"Node", c.Node}}
	for _, field := range names {
		if field.value == "" || strings.ContainsAny(field.value, "/+#\x00") {
			return fmt.Errorf("front end config: %s is %q: must not be empty, nor hold '/', '+' or '#'", field.name, field.value)
		}
	}
	positive := []struct {
		name  string
		value int64
	}{
		{"len(Addresses)", int64(len(c.Addresses))},
		{"SessionAge", int64(c.SessionAge)},
		{"DefaultExpiry", int64(c.DefaultExpiry)},
		{"ProbeInterval", int64(c.ProbeInterval)},
		{"KeepAlive", int64(c.KeepAlive)},
		{"ConnectTime", int64(c.ConnectTime)},
		{"BackoffMin", int64(c.BackoffMin)},
		{"Publishers", int64(c.Publishers)},
		{"Window", int64(c.Window)},
		{"Executing", int64(c.Executing)},
		{"HoldBytes", int64(c.HoldBytes)},
		{"HoldMessages", int64(c.HoldMessages)},
		{"RequestsPerClient", int64(c.RequestsPerClient)},
		{"OverloadAge", int64(c.OverloadAge)},
		{"ProposalAge", int64(c.ProposalAge)},
		{"DedupMargin", int64(c.DedupMargin)},
		{"QueueNotifications", int64(c.QueueNotifications)},
		{"QueueBytes", int64(c.QueueBytes)},
	}
	for _, field := range positive {
		if field.value <= 0 {
			return fmt.Errorf("front end config: %s is %d: must be positive", field.name, field.value)
		}
	}
	switch {
	case c.BackoffMax < c.BackoffMin:
		return fmt.Errorf("front end config: BackoffMax is %v: must not be below BackoffMin (%v)", c.BackoffMax, c.BackoffMin)
	case c.MaxExpiry < c.DefaultExpiry:
		return fmt.Errorf("front end config: MaxExpiry is %v: must not be below DefaultExpiry (%v)", c.MaxExpiry, c.DefaultExpiry)
	}
	return nil
}
