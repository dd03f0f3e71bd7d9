package mqttfront

import (
	"fmt"
	"strings"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/wire"
)

// Config is what a Front needs to know. DefaultConfig gives the rest a value.
type Config struct {
	Cluster string // prefix of the MQTT client ids
	Node    string

	Addresses []mqttconn.Address
	Username  string
	// Password is asked for each connection, so that it may change; nil is a login without one. It must be safe for concurrent use.
	Password func() []byte

	Identity wire.Identity

	// FollowLeader makes requests come by one session of the cluster, which follows the leader, instead of one of each node. It is
	// cheaper, and rests on the broker's queue for what comes while nobody leads.
	FollowLeader bool

	// SessionAge is how long the broker keeps the ingest session, and how old a copy of a request may be.
	SessionAge time.Duration
	// DefaultExpiry is how long a request without a message expiry is worth answering, MaxExpiry how long any is.
	DefaultExpiry time.Duration
	MaxExpiry     time.Duration
	// DedupMargin is how long after the end of a request its client may send it again and gets the same answer.
	DedupMargin time.Duration
	// ProbeInterval is how often a node sends itself a message through the broker.
	ProbeInterval time.Duration
	KeepAlive     time.Duration
	ConnectTime   time.Duration // bounds a connection attempt
	BackoffMin    time.Duration // between attempts to connect, with jitter
	BackoffMax    time.Duration

	Publishers   int // publishing connections
	Window       int // messages in flight on each
	Executing    int // requests in the hands of the store at once
	HoldBytes    int // requests kept until they are known to be answered
	HoldMessages int
	// RequestsPerClient bounds the requests of one client that the store or a reply has under way at a leader; more are refused.
	RequestsPerClient int
	// OverloadAge is how long a request may wait to be taken up before it is refused.
	OverloadAge time.Duration
	// ProposalAge is how long the store keeps a write at most before it is proposed.
	ProposalAge time.Duration
	// QueueNotifications bounds the notifications that wait on one publishing connection; beyond it the oldest are given up.
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
		DefaultExpiry: time.Minute, MaxExpiry: 10 * time.Minute, DedupMargin: 2 * time.Minute, // as the protocol says
		KeepAlive: 30 * time.Second, ConnectTime: 10 * time.Second, BackoffMin: 50 * time.Millisecond, BackoffMax: 2 * time.Second,
		Publishers: 2, Window: 4096, Executing: 16384,
		HoldBytes: 256 << 20, HoldMessages: 200_000, RequestsPerClient: 4096, OverloadAge: 5 * time.Second, ProposalAge: 5 * time.Second, QueueNotifications: 200_000, QueueBytes: 64 << 20,
	}
}

// maxWait bounds the time from the arrival of a write at a leader until it is proposed. A write that waited longer is not executed: its outcome
// may be forgotten.
func (c *Config) maxWait() time.Duration { return c.OverloadAge + c.ProposalAge }

// decoder returns the decoder of requests. The outcome of a request is remembered beyond the time for which it is worth answering for as long as its
// client may send it again, and such a copy may then wait in a session and at a leader.
func (c *Config) decoder() wire.Decoder {
	return wire.Decoder{
		Identity: c.Identity, DefaultExpiry: c.DefaultExpiry, MaxExpiry: c.MaxExpiry,
		Margin: c.DedupMargin + c.SessionAge + c.maxWait(),
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
