package settings

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Value is a setting that can be read from text and written as text.
type Value interface {
	Set(text string) error
	String() string
	Type() string
}

// Field is one setting with its name.
type Field struct {
	Path   string
	Help   string
	Value  Value
	IsBool bool
}

// EnvironmentVariable returns the name of the setting in the environment.
func (f *Field) EnvironmentVariable() string {
	return "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(f.Path, ".", "_"))
}

// Fields returns all settings, bound to s.
func (s *Settings) Fields() []Field {
	fields := []Field{
		{
			Path: "node.id", Value: (*text)(&s.Node.ID),
			Help: "name of this node, unique in the cluster",
		},
		{
			Path: "node.dataDir", Value: (*text)(&s.Node.DataDir),
			Help: "folder for the log and the snapshots",
		},
		{
			Path: "node.minFreeDisk", Value: &s.Node.MinFreeDisk,
			Help: "free disk space below which SETs that need more space are refused",
		},
		{
			Path: "cluster.name", Value: (*text)(&s.Cluster.Name),
			Help: "name of the cluster, prefix of its MQTT client ids",
		},
		{
			Path: "cluster.listen", Value: (*text)(&s.Cluster.Listen),
			Help: "address for the other members",
		},
		{
			Path: "cluster.advertise", Value: (*text)(&s.Cluster.Advertise),
			Help: "address under which the other members reach this one (default: the node's id and the port of cluster.listen)",
		},
		{
			Path: "cluster.peers", Value: (*list)(&s.Cluster.Peers),
			Help: "initial members, id=host:port; none is a cluster of one",
		},
		{
			Path: "cluster.peersFile", Value: (*text)(&s.Cluster.PeersFile),
			Help: "file with the initial members, read at a first start",
		},
		{
			Path: "cluster.profile", Value: (*text)(&s.Cluster.Profile),
			Help: "timing: lan, or edge for slow disks and crowded machines",
		},
		{
			Path: "cluster.heartbeat", Value: (*duration)(&s.Cluster.Heartbeat),
			Help: "a follower that hears nothing for this long stands for election; 0 is the profile's",
		},
		{
			Path: "cluster.election", Value: (*duration)(&s.Cluster.Election),
			Help: "a candidate that is not elected for this long tries again; 0 is the profile's",
		},
		{
			Path: "cluster.leaderLease", Value: (*duration)(&s.Cluster.LeaderLease),
			Help: "a leader that reaches no majority for this long steps down; 0 is the profile's",
		},
		{
			Path: "cluster.diskDeadline", Value: (*duration)(&s.Cluster.DiskDeadline),
			Help: "a write to the disk that takes longer than this ends the process; 0 is the profile's",
		},
		{
			Path: "cluster.maxClockOffset", Value: (*duration)(&s.Cluster.MaxClockOffset),
			Help: "difference to the other members' clocks that is reported",
		},
		{
			Path: "cluster.logStore", Value: (*text)(&s.Cluster.LogStore),
			Help: "how the log is kept: wal, boltdb (two syncs for a write instead of one), or auto (the format of the log that exists; wal if there is none)",
		},
	}
	fields = append(fields, tlsFields("cluster.tls", "members", &s.Cluster.TLS, false)...)
	fields = append(fields,
		Field{
			Path: "cluster.tls.insecure", Value: (*boolean)(&s.Cluster.TLS.Insecure),
			IsBool: true, Help: "plain TCP between the members",
		},
		Field{
			Path: "broker.addresses", Value: (*list)(&s.Broker.Addresses),
			Help: "brokers to try in turn, mqtt://host:port or mqtts://host:port",
		},
		Field{Path: "broker.username", Value: (*text)(&s.Broker.Username), Help: "MQTT user name"},
		Field{
			Path: "broker.passwordFile", Value: (*text)(&s.Broker.PasswordFile),
			Help: "file with the MQTT password",
		},
	)
	fields = append(fields, tlsFields("broker.tls", "the broker", &s.Broker.TLS, true)...)
	fields = append(fields,
		Field{
			Path: "broker.driver", Value: (*text)(&s.Broker.Driver),
			Help: "what is known of the broker beyond the MQTT standard: none, mosquitto or emqx",
		},
		Field{
			Path: "broker.api.url", Value: (*text)(&s.Broker.API.URL),
			Help: "EMQX's REST API, by which clients are disconnected, as https://emqx:18084",
		},
		Field{
			Path: "broker.api.keyFile", Value: (*text)(&s.Broker.API.KeyFile),
			Help: "file with an API key and its secret, with a colon between them",
		},
		Field{
			Path: "broker.api.caFile", Value: (*text)(&s.Broker.API.CAFile),
			Help: "certificates that vouch for the API; the system's by default",
		},
		Field{
			Path: "admin.listen", Value: (*text)(&s.Admin.Listen),
			Help: "address of the admin API; plain HTTP on loopback, mutual TLS elsewhere",
		},
	)
	fields = append(fields, tlsFields("admin.tls", "administrators", &s.Admin.TLS, false)...)
	fields = append(fields, Field{
		Path: "admin.pprof", Value: (*boolean)(&s.Admin.Pprof),
		IsBool: true, Help: "profiles of the process under /debug/pprof/ of the admin API",
	})
	return append(fields,
		Field{
			Path: "health.listen", Value: (*text)(&s.Health.Listen),
			Help: "address of /livez, /readyz and /metrics; empty is off",
		},
		Field{
			Path: "protocol.dialect", Value: (*text)(&s.Protocol.Dialect),
			Help: "auto, documented or sdk",
		},
		Field{
			Path: "protocol.caseInsensitive", Value: (*boolean)(&s.Protocol.CaseInsensitive),
			IsBool: true, Help: "understand verbs and options in lower case",
		},
		Field{Path: "limits.keyBytes", Value: &s.Limits.KeyBytes, Help: "longest key"},
		Field{Path: "limits.valueBytes", Value: &s.Limits.ValueBytes, Help: "longest value"},
		Field{
			Path: "limits.keys", Value: (*number)(&s.Limits.Keys),
			Help: "number of keys; 0 is no limit",
		},
		Field{
			Path: "limits.totalBytes", Value: &s.Limits.TotalBytes,
			Help: "bytes of all keys and values; auto is a quarter of the memory of the member that may use least; 0 is no limit",
		},
		Field{
			Path: "limits.watches", Value: (*number)(&s.Limits.Watches),
			Help: "watches of all clients on all keys",
		},
		Field{
			Path: "limits.dedupEntries", Value: (*number)(&s.Limits.DedupEntries),
			Help: "outcomes that are remembered, so that a copy of a request takes effect once",
		},
		Field{
			Path: "limits.keysPerClient", Value: (*number)(&s.Limits.KeysPerClient),
			Help: "keys that one client wrote last, a user where the broker stamps users; 0 is no limit",
		},
		Field{
			Path: "limits.bytesPerClient", Value: &s.Limits.BytesPerClient,
			Help: "bytes of the keys and values that one client wrote last; 0 is no limit",
		},
		Field{
			Path: "limits.watchesPerClient", Value: (*number)(&s.Limits.WatchesPerClient),
			Help: "watches of one client; 0 is no limit",
		},
		Field{
			Path:  "limits.dedupEntriesPerClient",
			Value: (*number)(&s.Limits.DedupEntriesPerClient),
			Help:  "outcomes of one client that are remembered; at most half of limits.dedupEntries, and 0 means that half",
		},
		Field{
			Path: "limits.requestsPerClient", Value: (*number)(&s.Limits.RequestsPerClient),
			Help: "requests of one client that are under way at once; more are refused as overload",
		},
		Field{
			Path: "identity.clientIdProperty", Value: (*text)(&s.Identity.ClientIDProperty),
			Help: "user property in which the broker stamps the publisher's client id",
		},
		Field{
			Path: "identity.usernameProperty", Value: (*text)(&s.Identity.UsernameProperty),
			Help: "user property in which the broker stamps the publisher's user name",
		},
		Field{
			Path: "identity.attributeProperties", Value: (*list)(&s.Identity.AttributeProperties),
			Help: "user properties that the broker stamps with attributes of the publisher",
		},
		Field{
			Path: "policyFile", Value: (*text)(&s.PolicyFile),
			Help: "authorization policy; none turns authorization off",
		},
		Field{
			Path: "watch.ttl", Value: (*duration)(&s.Watch.TTL),
			Help: "how long a watch lasts that is not renewed; 0 is no expiry",
		},
		Field{
			Path: "watch.notificationExpiry", Value: (*duration)(&s.Watch.NotificationExpiry),
			Help: "how long a notification is worth delivering",
		},
		Field{
			Path: "mirrors", Value: &s.Mirrors,
			Help: "keys that the leader publishes as retained messages, as pattern=topic/",
		},
		Field{Path: "log.level", Value: (*text)(&s.Log.Level), Help: "debug, info, warn or error"},
		Field{Path: "log.format", Value: (*text)(&s.Log.Format), Help: "text or json"},
		Field{
			Path: "audit.file", Value: (*text)(&s.Audit.File),
			Help: "audit log: who changed which key, as JSON lines; empty is none",
		},
		Field{
			Path: "audit.maxBytes", Value: &s.Audit.MaxBytes,
			Help: "size of an audit file at which the next one is begun",
		},
		Field{
			Path: "audit.files", Value: (*number)(&s.Audit.Files),
			Help: "how many earlier audit files are kept",
		},
	)
}

func tlsFields(path, whom string, t *TLS, client bool) []Field {
	fields := []Field{
		{Path: path + ".certFile", Value: (*text)(&t.CertFile), Help: "certificate shown to " +
			whom},
		{Path: path + ".keyFile", Value: (*text)(&t.KeyFile), Help: "key of the certificate"},
		{Path: path + ".caFile", Value: (*text)(&t.CAFile), Help: "certificates that vouch for " +
			whom},
	}
	if client {
		fields = append(fields, Field{
			Path: path + ".serverName", Value: (*text)(&t.ServerName),
			Help: "name that the certificate of " + whom + " must have",
		})
	}
	return fields
}

type text string

func (t *text) Set(value string) error { *t = text(value); return nil }
func (t *text) String() string         { return string(*t) }
func (t *text) Type() string           { return "string" }

type boolean bool

func (b *boolean) Set(value string) error {
	switch value {
	case "true":
		*b = true
	case "false":
		*b = false
	default:
		return fmt.Errorf("want true or false")
	}
	return nil
}
func (b *boolean) String() string { return strconv.FormatBool(bool(*b)) }
func (b *boolean) Type() string   { return "bool" }

type number int64

func (n *number) Set(value string) error {
	parsed, err := strconv.ParseInt(value, 10, 64)
	if err != nil || parsed < 0 {
		return fmt.Errorf("want a whole number that is not negative")
	}
	*n = number(parsed)
	return nil
}
func (n *number) String() string { return strconv.FormatInt(int64(*n), 10) }
func (n *number) Type() string   { return "number" }

type duration time.Duration

func (d *duration) Set(value string) error {
	parsed, err := time.ParseDuration(value)
	if value == "0" {
		parsed, err = 0, nil
	}
	if err != nil || parsed < 0 {
		return fmt.Errorf("want a duration such as 500ms, 30s or 2m")
	}
	*d = duration(parsed)
	return nil
}
func (d *duration) String() string { return time.Duration(*d).String() }
func (d *duration) Type() string   { return "duration" }

// list is comma-separated in text. An element with a comma or a quote stands in double quotes, as
// in CSV.
type list []string

func (l *list) Set(value string) error {
	if value == "" {
		*l = nil
		return nil
	}
	reader := csv.NewReader(strings.NewReader(value))
	reader.TrimLeadingSpace = true
	elements, err := reader.Read()
	if err != nil {
		return fmt.Errorf("want elements separated by commas: %w", err)
	}
	if _, err := reader.Read(); !errors.Is(err, io.EOF) {
		return errors.New("want elements separated by commas, on one line")
	}
	*l = elements
	return nil
}

// String returns the list as Set reads it.
func (l *list) String() string {
	if len(*l) == 0 {
		return ""
	}
	var out strings.Builder
	writer := csv.NewWriter(&out)
	_ = writer.Write(*l) // a strings.Builder takes everything
	writer.Flush()
	return strings.TrimSuffix(out.String(), "\n")
}
func (l *list) Type() string { return "list" }

// Size is a number of bytes.
type Size int64

// Auto is a size that the node works out itself. Only limits.totalBytes may be Auto.
const Auto Size = -1

// Set reads a number of bytes with an optional unit.
func (s *Size) Set(value string) error {
	if value == "auto" {
		*s = Auto
		return nil
	}
	digits := strings.TrimRight(value, "KMGTiB")
	unit := value[len(digits):]
	factors := map[string]int64{
		"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
		"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	}
	factor, known := factors[unit]
	parsed, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	if err != nil || !known || parsed < 0 || parsed > math.MaxInt64/factor {
		return fmt.Errorf("want a number of bytes such as 65536, 64KiB or 4MiB")
	}
	*s = Size(parsed * factor)
	return nil
}

// String returns the size with the largest unit that divides it.
func (s *Size) String() string {
	if *s == Auto {
		return "auto"
	}
	value, unit := int64(*s), 0
	for value != 0 && value%1024 == 0 && unit < 4 {
		value /= 1024
		unit++
	}
	return strconv.FormatInt(value, 10) + [...]string{"", "KiB", "MiB", "GiB", "TiB"}[unit]
}

// Type implements Value.
func (s *Size) Type() string { return "size" }
