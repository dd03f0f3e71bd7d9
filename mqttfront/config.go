package mqttfront

import (
	"fmt"
	"math"
	"strings"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/leader"
	"holdfast/mqttfront/wire"
)

// Config configures a Front. DefaultConfig sets each field that has a default. Validate checks the
// values.
type Config struct {
	Cluster string // prefix of the MQTT client ids
	Node    string // name of this node; part of its MQTT client ids

	Addresses []mqttconn.Address
	Username  string
	// Password is called for each connection, so the password may change. nil means no password. It
	// must be safe for concurrent use.
	Password func() []byte

	Identity wire.Identity

	leader.Config

	// SessionExpiry is the session expiry of the cluster's session, by which requests come, in
	// whole seconds. A request that may have been queued in it for longer is not executed.
	SessionExpiry time.Duration
	// DefaultExpiry is used in place of the message expiry for a request that has none.
	DefaultExpiry time.Duration
	MaxExpiry     time.Duration // bounds DefaultExpiry and the message expiry of each request
	// ProbeInterval is how often a node sends a probe: a message to itself through the broker.
	ProbeInterval  time.Duration
	KeepAlive      time.Duration // the MQTT keep alive, in whole seconds
	ConnectTimeout time.Duration // bounds a connection attempt
	// first delay between two attempts to connect; each later one is twice as long, and jitter
	// takes away up to half of each
	BackoffMin time.Duration
	BackoffMax time.Duration // longest delay

	// number of publishing connections, on which a leader publishes replies and notifications
	PublishingConnections int
	Window                int // most unacknowledged messages on each of them
	// QueueNotifications bounds the notifications that wait on one publishing connection; beyond it
	// the oldest are dropped.
	QueueNotifications int
	// bounds the bytes of the keys and values of these notifications; a single larger notification
	// is kept
	QueueBytes int
}

// StaticPassword is a Password that does not change.
func StaticPassword(password string) func() []byte {
	return func() []byte { return []byte(password) }
}

// DefaultConfig returns the defaults. The caller must set Node and Addresses, and may set Username,
// Password and Identity.
func DefaultConfig() Config {
	return Config{
		Cluster: "holdfast", SessionExpiry: time.Minute, ProbeInterval: time.Second,
		DefaultExpiry: time.Minute, MaxExpiry: 10 * time.Minute, // the defaults of the protocol
		KeepAlive: 30 * time.Second, ConnectTimeout: 10 * time.Second,
		BackoffMin: 50 * time.Millisecond, BackoffMax: 2 * time.Second,
		PublishingConnections: 2, Window: 4096, QueueNotifications: 200_000, QueueBytes: 64 << 20,
		Config: leader.DefaultConfig(),
	}
}

// decoder returns the decoder of requests. Margin is how long the dedup table (the outcomes of
// recent requests, by identity) keeps an outcome after the request has expired. In that time the
// client may send a copy (DedupMargin), and the copy may wait in the session's queue
// (SessionExpiry) and at the leader (MaxWait).
func (c *Config) decoder() wire.Decoder {
	return wire.Decoder{
		Identity: c.Identity, DefaultExpiry: c.DefaultExpiry, MaxExpiry: c.MaxExpiry,
		Margin: c.DedupMargin + c.SessionExpiry + c.MaxWait(),
	}
}

// Validate returns an error that names the first invalid field.
func (c *Config) Validate() error {
	names := []struct{ name, value string }{{"Cluster", c.Cluster}, {"Node", c.Node}}
	for _, field := range names {
		if field.value == "" || strings.ContainsAny(field.value, "/+#\x00") {
			return fmt.Errorf(
				"front end config: %s is %q: must not be empty or contain '/', '+', '#' or NUL",
				field.name, field.value)
		}
	}
	positive := []struct {
		name  string
		value int64
	}{
		{"len(Addresses)", int64(len(c.Addresses))},
		{"SessionExpiry", int64(c.SessionExpiry)},
		{"DefaultExpiry", int64(c.DefaultExpiry)},
		{"ProbeInterval", int64(c.ProbeInterval)},
		{"KeepAlive", int64(c.KeepAlive)},
		{"ConnectTimeout", int64(c.ConnectTimeout)},
		{"BackoffMin", int64(c.BackoffMin)},
		{"PublishingConnections", int64(c.PublishingConnections)},
		{"Window", int64(c.Window)},
		{"Executing", int64(c.Executing)},
		{"RequestBytes", int64(c.RequestBytes)},
		{"RequestsPerClient", int64(c.RequestsPerClient)},
		{"OverloadAge", int64(c.OverloadAge)},
		{"ProposalAge", int64(c.ProposalAge)},
		{"DedupMargin", int64(c.DedupMargin)},
		{"QueueNotifications", int64(c.QueueNotifications)},
		{"QueueBytes", int64(c.QueueBytes)},
	}
	for _, field := range positive {
		if field.value <= 0 {
			return fmt.Errorf("front end config: %s is %d: must be positive", field.name,
				field.value)
		}
	}
	switch {
	case c.SessionExpiry%time.Second != 0 || c.SessionExpiry > math.MaxUint32*time.Second:
		return fmt.Errorf("front end config: SessionExpiry is %v: must be whole seconds, at most %d", c.SessionExpiry, uint32(math.MaxUint32))
	case c.KeepAlive%time.Second != 0 || c.KeepAlive > math.MaxUint16*time.Second:
		return fmt.Errorf("front end config: KeepAlive is %v: must be whole seconds, at most %d",
			c.KeepAlive, math.MaxUint16)
	case c.BackoffMax < c.BackoffMin:
		return fmt.Errorf("front end config: BackoffMax is %v: must not be below BackoffMin (%v)",
			c.BackoffMax, c.BackoffMin)
	case c.MaxExpiry < c.DefaultExpiry:
		return fmt.Errorf("front end config: MaxExpiry is %v: must not be below DefaultExpiry (%v)",
			c.MaxExpiry, c.DefaultExpiry)
	}
	return nil
}
