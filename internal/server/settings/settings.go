// Package settings holds the configuration of a node. Each setting has one name: its path in the
// YAML file and its command-line flag. The environment variable is HOLDFAST_ and that name in
// capitals, with underscores for dots.
package settings

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Settings is the configuration of a node.
type Settings struct {
	Node     Node
	Cluster  Cluster
	Broker   Broker
	Admin    Admin
	Health   Endpoint
	Protocol Protocol
	Limits   Limits
	Identity Identity
	Watch    Watch
	Log      Log
	Audit    Audit
	Mirrors  Mirrors
	// PolicyFile names the authorization policy; empty leaves the policy in force as it is, None
	// removes it.
	PolicyFile string
}

// None is the PolicyFile that turns authorization off.
const None = "none"

// FollowedPolicy returns the policy file that is to be followed for changes; empty is none.
func (s *Settings) FollowedPolicy() string {
	if s.PolicyFile == None {
		return ""
	}
	return s.PolicyFile
}

// Dialable returns an address under which a listener can be reached from its own machine.
func Dialable(listening string) string {
	host, port, err := net.SplitHostPort(listening)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listening
}

// Node says who the node is and where it keeps its data.
type Node struct {
	ID          string
	DataDir     string
	MinFreeDisk Size
}

// Cluster says who the members are.
type Cluster struct {
	Name      string
	Listen    string
	Advertise string
	Peers     []string // id=host:port
	PeersFile string
	Profile   string
	// 0 is the profile's, also for Election, LeaderLease and DiskDeadline
	Heartbeat time.Duration
	Election  time.Duration
	// a leader that reaches no majority for this long steps down; reads do not rely on it
	LeaderLease    time.Duration
	DiskDeadline   time.Duration // a write to the disk that takes longer ends the process
	MaxClockOffset time.Duration
	LogStore       string
	TLS            TLS
}

// Peer is an initial member.
type Peer struct{ ID, Address string }

// TLS names certificate files.
type TLS struct {
	CertFile   string
	KeyFile    string
	CAFile     string
	ServerName string
	Insecure   bool
}

// Broker says how to reach the MQTT broker.
type Broker struct {
	Addresses    []string
	Username     string
	PasswordFile string
	TLS          TLS
	Driver       string
	API          API
}

// API says how to reach the broker's own API, where its driver uses one.
type API struct {
	URL     string
	KeyFile string
	CAFile  string
}

// Endpoint is where an HTTP server of the node listens.
type Endpoint struct {
	Listen string
}

// Admin is where the admin API listens, and what it shows.
type Admin struct {
	Listen string
	TLS    TLS
	Pprof  bool
}

// Protocol says how requests are understood where the documented protocol (docs/protocol.md) and
// the client libraries differ.
type Protocol struct {
	Dialect         string
	CaseInsensitive bool
}

// Limits bound what clients may store. 0 is no limit for Keys, TotalBytes, KeysPerClient,
// BytesPerClient and WatchesPerClient. For DedupEntriesPerClient it is half of DedupEntries.
type Limits struct {
	KeyBytes     Size
	ValueBytes   Size
	Keys         int64
	TotalBytes   Size // Auto: a quarter of the memory of the member that may use least
	Watches      int64
	DedupEntries int64
	// The shares of one user, where the broker says who that is, and of one client id elsewhere.
	KeysPerClient  int64
	BytesPerClient Size // of keys and values
	// The shares of one client id.
	WatchesPerClient      int64
	DedupEntriesPerClient int64
	RequestsPerClient     int64 // requests that are under way at once
}

// Identity names the user properties of a message in which the broker stamps who published it.
type Identity struct {
	ClientIDProperty    string
	UsernameProperty    string
	AttributeProperties []string
}

// Watch bounds the life of watches and notifications.
type Watch struct {
	TTL                time.Duration
	NotificationExpiry time.Duration
}

// Log says what is logged and how.
type Log struct {
	Level  string
	Format string
}

// Audit configures the audit log, which says who changed which key.
type Audit struct {
	File     string // empty: no audit log
	MaxBytes Size   // the size of a file at which the next one is begun
	Files    int64  // the number of earlier files that are kept
}

// Default returns the settings of a node for which nothing is configured.
func Default() Settings {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "node"
	}
	return Settings{
		Node: Node{ID: host, DataDir: "./data", MinFreeDisk: 256 << 20},
		Cluster: Cluster{
			Name: "holdfast", Listen: "0.0.0.0:7400", Profile: "lan",
			MaxClockOffset: 5 * time.Second, LogStore: "auto",
		},
		Broker:   Broker{Addresses: []string{"mqtt://127.0.0.1:1883"}, Driver: "none"},
		Admin:    Admin{Listen: "127.0.0.1:7401"},
		Health:   Endpoint{Listen: "127.0.0.1:7402"},
		Protocol: Protocol{Dialect: "auto"},
		Limits: Limits{
			KeyBytes: 64 << 10, ValueBytes: 4 << 20, TotalBytes: Auto,
			Watches: 100_000, DedupEntries: 8_000_000, WatchesPerClient: 10_000,
			DedupEntriesPerClient: 2_000_000, RequestsPerClient: 4096,
		},
		Watch: Watch{NotificationExpiry: 30 * time.Second},
		Log:   Log{Level: "info", Format: "text"},
		Audit: Audit{MaxBytes: 64 << 20, Files: 8},
	}
}

// ErrInvalid is wrapped by every error about a setting.
var ErrInvalid = errors.New("invalid setting")

// Error is what is wrong with one setting.
type Error struct {
	Path, Value, Reason string
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s is %q: %s", e.Path, e.Value, e.Reason) }

// Unwrap returns ErrInvalid.
func (e *Error) Unwrap() error { return ErrInvalid }
