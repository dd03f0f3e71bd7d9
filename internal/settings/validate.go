package settings

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/mqttconn"
)

// Validate returns an *Error for the first setting that makes no sense.
func (s *Settings) Validate() error {
	for _, check := range []func() error{
		s.validateNames, s.validateChoices, s.validateCluster, s.validateBroker, s.validateEndpoints, s.validateLimits,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) validateNames() error {
	for _, name := range []struct{ path, value string }{{"node.id", s.Node.ID}, {"cluster.name", s.Cluster.Name}} {
		if name.value == "" || strings.ContainsAny(name.value, "/+#=, \t\n\x00") {
			return &Error{name.path, name.value, "must not be empty, nor hold white space or any of / + # = ,"}
		}
	}
	for _, property := range append([]string{s.Identity.ClientIDProperty, s.Identity.UsernameProperty}, s.Identity.AttributeProperties...) {
		if strings.HasPrefix(property, "__") {
			return &Error{"identity", property, "is a property of the protocol, which clients set themselves"}
		}
	}
	if s.Node.DataDir == "" {
		return &Error{"node.dataDir", "", "must not be empty"}
	}
	return nil
}

func (s *Settings) validateChoices() error {
	for _, choice := range []struct {
		path, value string
		allowed     []string
		later       []string // known, but not in this version
	}{
		{"cluster.profile", s.Cluster.Profile, []string{"lan", "edge"}, nil},
		{"cluster.logStore", s.Cluster.LogStore, []string{"boltdb"}, []string{"wal"}},
		{"cluster.ingest", s.Cluster.Ingest, []string{"everywhere"}, []string{"leader"}},
		{"broker.driver", s.Broker.Driver, []string{"none"}, []string{"mosquitto", "emqx", "embedded"}},
		{"protocol.dialect", s.Protocol.Dialect, []string{"auto", "documented", "sdk"}, nil},
		{"log.level", s.Log.Level, []string{"debug", "info", "warn", "error"}, nil},
		{"log.format", s.Log.Format, []string{"text", "json"}, nil},
	} {
		if slices.Contains(choice.allowed, choice.value) {
			continue
		}
		reason := "must be " + strings.Join(choice.allowed, " or ")
		if slices.Contains(choice.later, choice.value) {
			reason = "not supported by this version of `holdfast server`; " + reason
		}
		return &Error{choice.path, choice.value, reason}
	}
	return nil
}

func (s *Settings) validateCluster() error {
	if s.Cluster.PeersFile != "" {
		return &Error{"cluster.peersFile", s.Cluster.PeersFile, "not supported by this version of `holdfast server`, which runs a cluster of one"}
	}
	for _, peer := range s.Cluster.Peers {
		id, address, ok := strings.Cut(peer, "=")
		if !ok || id == "" || !validAddress(address) {
			return &Error{"cluster.peers", peer, "want id=host:port"}
		}
		if len(s.Cluster.Peers) > 1 || id != s.Node.ID {
			return &Error{"cluster.peers", strings.Join(s.Cluster.Peers, ","), "this version of `holdfast server` runs a cluster of one: name this node alone, or nobody"}
		}
	}
	return s.validateAlone()
}

// validateAlone refuses what has no effect in a cluster of one, rather than ignoring it.
func (s *Settings) validateAlone() error {
	standard := Default().Cluster
	const reason = "has no effect: this version of `holdfast server` runs a cluster of one"
	switch {
	case s.Cluster.Listen != standard.Listen:
		return &Error{"cluster.listen", s.Cluster.Listen, reason}
	case s.Cluster.Advertise != "":
		return &Error{"cluster.advertise", s.Cluster.Advertise, reason}
	case s.Cluster.MaxClockOffset != standard.MaxClockOffset:
		return &Error{"cluster.maxClockOffset", s.Cluster.MaxClockOffset.String(), reason}
	case s.Cluster.TLS != (TLS{}):
		return &Error{"cluster.tls", s.Cluster.TLS.CertFile, reason}
	default:
		return nil
	}
}

func (t *TLS) validate(path string) error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return &Error{path + ".certFile", t.CertFile, "goes together with " + path + ".keyFile"}
	}
	return nil
}

func (s *Settings) validateBroker() error {
	if len(s.Broker.Addresses) == 0 {
		return &Error{"broker.addresses", "", "must name a broker"}
	}
	for _, address := range s.Broker.Addresses {
		if _, err := mqttconn.ParseAddress(address); err != nil {
			if strings.Contains(address, "@") {
				address = "…" + address[strings.LastIndexByte(address, '@'):] // what comes before is a login
			}
			return &Error{"broker.addresses", address, "want mqtt://host:port or mqtts://host:port"}
		}
	}
	return s.Broker.TLS.validate("broker.tls")
}

func (s *Settings) validateEndpoints() error {
	if s.Health.Listen != "" && !validAddress(s.Health.Listen) {
		return &Error{"health.listen", s.Health.Listen, "want host:port, or nothing"}
	}
	if s.Admin.Listen == "" {
		return nil
	}
	if s.Admin.Listen == s.Health.Listen {
		return &Error{"admin.listen", s.Admin.Listen, "is health.listen, too"}
	}
	if !validAddress(s.Admin.Listen) {
		return &Error{"admin.listen", s.Admin.Listen, "want host:port, or nothing"}
	}
	if s.Admin.TLS != (TLS{}) {
		return &Error{"admin.tls", s.Admin.TLS.CertFile, "not supported by this version: the admin API is plain HTTP on loopback"}
	}
	if host, _, _ := net.SplitHostPort(s.Admin.Listen); !isLoopback(host) {
		return &Error{"admin.listen", s.Admin.Listen, "plain HTTP is for loopback only"}
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

func validAddress(address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number <= 65535
}

func (s *Settings) validateLimits() error {
	const mostBytes = 8 << 20 // a command has to fit into a message
	for _, limit := range []struct {
		path       string
		value      int64
		text       string
		least, end int64
	}{
		{"limits.keyBytes", int64(s.Limits.KeyBytes), s.Limits.KeyBytes.String(), 1, mostBytes},
		{"limits.valueBytes", int64(s.Limits.ValueBytes), s.Limits.ValueBytes.String(), 0, mostBytes},
		{"limits.watches", s.Limits.Watches, strconv.FormatInt(s.Limits.Watches, 10), 0, 1 << 40},
		{"limits.dedupEntries", s.Limits.DedupEntries, strconv.FormatInt(s.Limits.DedupEntries, 10), 100, 1 << 40},
		{"node.minFreeDisk", int64(s.Node.MinFreeDisk), s.Node.MinFreeDisk.String(), 0, 1 << 60},
	} {
		if limit.value < limit.least || limit.value > limit.end {
			return &Error{limit.path, limit.text, "must be between " + strconv.FormatInt(limit.least, 10) + " and " + strconv.FormatInt(limit.end, 10)}
		}
	}
	if s.Watch.NotificationExpiry < time.Second {
		return &Error{"watch.notificationExpiry", s.Watch.NotificationExpiry.String(), "must be at least 1s"}
	}
	if s.Watch.TTL != 0 && s.Watch.TTL < time.Second {
		return &Error{"watch.ttl", s.Watch.TTL.String(), "must be 0 or at least 1s"}
	}
	return nil
}
