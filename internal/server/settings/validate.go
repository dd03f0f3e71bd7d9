package settings

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"holdfast/internal/mqttconn"
)

// Validate returns an *Error for the first setting that makes no sense.
func (s *Settings) Validate() error {
	for _, check := range []func() error{
		s.validateNames, s.validateChoices, s.validateCluster, s.validateBroker,
		s.validateEndpoints, s.validateLimits, s.validateMirrors,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) validateNames() error {
	for _, name := range []struct{ path, value string }{
		{"node.id", s.Node.ID},
		{"cluster.name", s.Cluster.Name},
	} {
		if !validName(name.value) {
			return &Error{
				name.path, name.value,
				"must not be empty, nor hold white space, control characters or any of / + # = , @",
			}
		}
	}
	properties := map[string][]string{
		"identity.clientIdProperty":    {s.Identity.ClientIDProperty},
		"identity.usernameProperty":    {s.Identity.UsernameProperty},
		"identity.attributeProperties": s.Identity.AttributeProperties,
	}
	for _, path := range slices.Sorted(maps.Keys(properties)) {
		for _, property := range properties[path] {
			if strings.HasPrefix(property, "__") {
				return &Error{
					path, property,
					"is a property of the protocol, which clients set themselves",
				}
			}
		}
	}
	if s.Broker.Driver == "mosquitto" && len(s.Identity.AttributeProperties) > 0 {
		return &Error{
			"identity.attributeProperties",
			strings.Join(s.Identity.AttributeProperties, ","),
			"Mosquitto does not stamp attributes: clients could set these properties themselves",
		}
	}
	const leastAudit = 64 << 10
	if s.Audit.File != "" && s.Audit.MaxBytes < leastAudit {
		return &Error{"audit.maxBytes", s.Audit.MaxBytes.String(), "must be at least 64KiB"}
	}
	const maxAuditFiles = 10_000 // a rotation may rename every file
	if s.Audit.File != "" && s.Audit.Files > maxAuditFiles {
		return &Error{"audit.files", strconv.FormatInt(s.Audit.Files, 10), "must be at most " +
			strconv.Itoa(maxAuditFiles)}
	}
	if s.Node.DataDir == "" {
		return &Error{"node.dataDir", "", "must not be empty"}
	}
	return nil
}

// validName reports whether a name is allowed for a node or a cluster.
func validName(name string) bool {
	unreadable := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	return name != "" && !strings.ContainsAny(name, "/+#=,@") &&
		!strings.ContainsFunc(name, unreadable)
}

func (s *Settings) validateChoices() error {
	for _, choice := range []struct {
		path, value string
		allowed     []string
		elsewhere   []string // values that only `holdfast dev` allows
	}{
		{"cluster.profile", s.Cluster.Profile, []string{"lan", "edge"}, nil},
		{"cluster.logStore", s.Cluster.LogStore, []string{"auto", "boltdb", "wal"}, nil},
		{
			"broker.driver", s.Broker.Driver,
			[]string{"none", "mosquitto", "emqx"},
			[]string{"embedded"},
		},
		{"protocol.dialect", s.Protocol.Dialect, []string{"auto", "documented", "sdk"}, nil},
		{"log.level", s.Log.Level, []string{"debug", "info", "warn", "error"}, nil},
		{"log.format", s.Log.Format, []string{"text", "json"}, nil},
	} {
		if slices.Contains(choice.allowed, choice.value) {
			continue
		}
		reason := "must be " + strings.Join(choice.allowed, " or ")
		if slices.Contains(choice.elsewhere, choice.value) {
			reason = "only for `holdfast dev`; " + reason
		}
		return &Error{choice.path, choice.value, reason}
	}
	return nil
}

func (s *Settings) validateCluster() error {
	c := &s.Cluster
	if c.PeersFile != "" && len(c.Peers) > 0 {
		return &Error{"cluster.peersFile", c.PeersFile, "cannot be combined with cluster.peers"}
	}
	if _, err := ParsePeers(c.Peers); err != nil {
		return &Error{"cluster.peers", strings.Join(c.Peers, ","), err.Error()}
	}
	if !validAddress(c.Listen) {
		return &Error{"cluster.listen", c.Listen, "want host:port"}
	}
	if c.Advertise != "" && !isDialable(c.Advertise) {
		return &Error{
			"cluster.advertise", c.Advertise,
			"want host:port, under which the other members reach this one",
		}
	}
	if own := s.ownPeer(); c.Advertise != "" && own != "" && own != c.Advertise {
		return &Error{
			"cluster.advertise", c.Advertise,
			"cluster.peers says that the others reach this node at " + own,
		}
	}
	if c.Listens() && !isDialable(s.AdvertisedAddress()) {
		return &Error{"cluster.advertise", c.Advertise, "must be set: the others cannot reach " +
			s.AdvertisedAddress()}
	}
	if c.MaxClockOffset <= 0 {
		return &Error{"cluster.maxClockOffset", c.MaxClockOffset.String(), "must be positive"}
	}
	files := c.TLS.CertFile != "" || c.TLS.KeyFile != "" || c.TLS.CAFile != ""
	switch {
	case files && c.TLS.Insecure:
		return &Error{
			"cluster.tls.insecure", "true",
			"cannot be combined with cluster.tls.certFile, keyFile or caFile",
		}
	case files && (c.TLS.CertFile == "" || c.TLS.KeyFile == "" || c.TLS.CAFile == ""):
		return &Error{
			"cluster.tls.certFile", c.TLS.CertFile,
			"requires cluster.tls.keyFile and cluster.tls.caFile",
		}
	case files || c.TLS.Insecure:
		return nil
	case c.PeersFile != "" || len(c.Peers) > 1:
		return &Error{
			"cluster.tls", "",
			"members need certificates (certFile, keyFile, caFile), or cluster.tls.insecure for plain TCP",
		}
	}
	return s.validateAlone()
}

// ParsePeers reads initial members, each id=host:port. The error does not repeat the list.
func ParsePeers(peers []string) ([]Peer, error) {
	var parsed []Peer
	for _, peer := range peers {
		id, address, ok := strings.Cut(peer, "=")
		if !ok || !validName(id) || !isDialable(address) {
			return nil, errors.New("want id=host:port")
		}
		for _, other := range parsed {
			if other.ID == id || other.Address == address {
				return nil, fmt.Errorf("%s or its address is there twice", id)
			}
		}
		parsed = append(parsed, Peer{id, address})
	}
	return parsed, nil
}

// isDialable reports whether an address can be dialled.
func isDialable(address string) bool {
	host, port, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && host != "" && port != "0" && validAddress(address) &&
		(ip == nil || !ip.IsUnspecified())
}

// validateAlone validates a node that does not listen for other members. It refuses settings that
// have no effect there.
func (s *Settings) validateAlone() error {
	standard := Default().Cluster
	const reason = "has no effect: without cluster.tls or cluster.tls.insecure the node is a cluster of one that listens for nobody"
	switch {
	case s.Cluster.Listen != standard.Listen:
		return &Error{"cluster.listen", s.Cluster.Listen, reason}
	case s.Cluster.Advertise != "":
		return &Error{"cluster.advertise", s.Cluster.Advertise, reason}
	case len(s.Cluster.Peers) == 1 && !strings.HasPrefix(s.Cluster.Peers[0], s.Node.ID+"="):
		return &Error{"cluster.peers", s.Cluster.Peers[0], reason}
	default:
		return nil
	}
}

// Listens reports whether the node listens for other members.
func (c *Cluster) Listens() bool { return c.TLS.Insecure || c.TLS.CertFile != "" }

// AdvertisedAddress returns the address under which the other members reach this node.
func (s *Settings) AdvertisedAddress() string {
	if s.Cluster.Advertise != "" {
		return s.Cluster.Advertise
	}
	if own := s.ownPeer(); own != "" {
		return own
	}
	_, port, err := net.SplitHostPort(s.Cluster.Listen)
	if err != nil {
		return s.Cluster.Listen // Validate has refused it
	}
	return net.JoinHostPort(s.Node.ID, port)
}

// ownPeer returns the address of this node in the list of peers, if it is there. A file of peers
// does not count: it is read at the first start only, and the address is needed at every start.
func (s *Settings) ownPeer() string {
	peers, err := ParsePeers(s.Cluster.Peers)
	if err != nil {
		return "" // Validate, or the start, says what is wrong
	}
	for _, peer := range peers {
		if peer.ID == s.Node.ID {
			return peer.Address
		}
	}
	return ""
}

// InitialPeers returns the initial members, from the list or the file. An empty list means a
// cluster of one.
func (s *Settings) InitialPeers() ([]Peer, error) {
	list := s.Cluster.Peers
	if s.Cluster.PeersFile != "" {
		data, err := os.ReadFile(s.Cluster.PeersFile)
		if err != nil {
			return nil, &Error{"cluster.peersFile", s.Cluster.PeersFile, err.Error()}
		}
		list = strings.FieldsFunc(string(data),
			func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
		if len(list) == 0 {
			return nil, &Error{"cluster.peersFile", s.Cluster.PeersFile, "there is no member in it"}
		}
	}
	peers, err := ParsePeers(list)
	if err != nil {
		return nil, &Error{"cluster.peersFile", s.Cluster.PeersFile, err.Error()}
	}
	return peers, nil
}

func (t *TLS) validate(path string) error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return &Error{path + ".certFile", t.CertFile, "must be set together with " + path +
			".keyFile"}
	}
	return nil
}

func (s *Settings) validateBroker() error {
	if len(s.Broker.Addresses) == 0 {
		return &Error{"broker.addresses", "", "must name a broker"}
	}
	for _, address := range s.Broker.Addresses {
		if _, err := mqttconn.ParseAddress(address); err != nil {
			return &Error{
				"broker.addresses", withoutLogin(address),
				"want mqtt://host:port or mqtts://host:port",
			}
		}
	}
	if err := s.validateAPI(); err != nil {
		return err
	}
	if err := s.Broker.TLS.validate("broker.tls"); err != nil {
		return err
	}
	if tls := s.Broker.TLS; tls != (TLS{}) && !slices.ContainsFunc(s.Broker.Addresses, isTLS) {
		return &Error{
			"broker.tls", cmp.Or(tls.CAFile, tls.CertFile, tls.KeyFile, tls.ServerName),
			"has no effect: no broker.addresses begins with mqtts://",
		}
	}
	return nil
}

// withoutLogin returns an address for an error text, without the user name and password that may
// come before an @.
func withoutLogin(address string) string {
	if at := strings.LastIndexByte(address, '@'); at >= 0 {
		return "…" + address[at:]
	}
	return address
}

func isTLS(address string) bool {
	parsed, err := mqttconn.ParseAddress(address)
	return err == nil && parsed.TLS
}

func (s *Settings) validateAPI() error {
	api := s.Broker.API
	switch {
	case api == API{}:
		return nil
	case s.Broker.Driver != "emqx":
		return &Error{"broker.api.url", withoutLogin(api.URL), "requires broker.driver emqx"}
	}
	address, err := url.Parse(api.URL)
	if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" ||
		address.User != nil {
		return &Error{
			"broker.api.url", withoutLogin(api.URL),
			"want http://host:port or https://host:port, without a login",
		}
	}
	if api.CAFile != "" && address.Scheme != "https" {
		return &Error{"broker.api.caFile", api.CAFile, "has no effect: broker.api.url is not https"}
	}
	if api.KeyFile == "" {
		return &Error{"broker.api.keyFile", "", "is required with broker.api.url"}
	}
	return nil
}

func (s *Settings) validateEndpoints() error {
	if s.Health.Listen != "" && !validAddress(s.Health.Listen) {
		return &Error{"health.listen", s.Health.Listen, "want host:port, or nothing"}
	}
	if s.Cluster.Listens() && collide(s.Health.Listen, s.Cluster.Listen) {
		return &Error{"health.listen", s.Health.Listen, "is cluster.listen, too"}
	}
	if s.Admin.Listen == "" {
		if s.Admin.TLS != (TLS{}) {
			return &Error{"admin.tls", s.Admin.TLS.CertFile, "has no effect without admin.listen"}
		}
		return nil
	}
	if !validAddress(s.Admin.Listen) {
		return &Error{"admin.listen", s.Admin.Listen, "want host:port, or nothing"}
	}
	if collide(s.Admin.Listen, s.Health.Listen) {
		return &Error{"admin.listen", s.Admin.Listen, "is health.listen, too"}
	}
	if s.Cluster.Listens() && collide(s.Admin.Listen, s.Cluster.Listen) {
		return &Error{"admin.listen", s.Admin.Listen, "is cluster.listen, too"}
	}
	if tls := s.Admin.TLS; tls != (TLS{}) {
		if tls.CertFile == "" || tls.KeyFile == "" || tls.CAFile == "" {
			return &Error{
				"admin.tls.certFile", tls.CertFile,
				"requires admin.tls.keyFile and admin.tls.caFile",
			}
		}
		return nil
	}
	if host, _, _ := net.SplitHostPort(s.Admin.Listen); !isLoopback(host) {
		return &Error{
			"admin.listen", s.Admin.Listen,
			"plain HTTP is for loopback only: set admin.tls",
		}
	}
	return nil
}

// collide reports whether two addresses cannot both be listened on.
func collide(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	anyA, anyB := net.ParseIP(hostA), net.ParseIP(hostB)
	return hostA == hostB || hostA == "" || hostB == "" || anyA != nil && anyA.IsUnspecified() ||
		anyB != nil && anyB.IsUnspecified()
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
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func (s *Settings) validateLimits() error {
	const mostBytes = 8 << 20 // a command has to fit into a message
	for _, limit := range []struct {
		path        string
		value       int64
		text        string
		least, most int64
	}{
		{"limits.keyBytes", int64(s.Limits.KeyBytes), s.Limits.KeyBytes.String(), 1, mostBytes},
		{
			"limits.valueBytes", int64(s.Limits.ValueBytes), s.Limits.ValueBytes.String(), 0,
			mostBytes,
		},
		{"limits.watches", s.Limits.Watches, strconv.FormatInt(s.Limits.Watches, 10), 0, 1 << 40},
		{
			"limits.dedupEntries", s.Limits.DedupEntries,
			strconv.FormatInt(s.Limits.DedupEntries, 10),
			100, 1 << 40,
		},
		{
			"limits.keysPerClient", s.Limits.KeysPerClient,
			strconv.FormatInt(s.Limits.KeysPerClient, 10), 0, 1 << 40,
		},
		{
			"limits.bytesPerClient", int64(s.Limits.BytesPerClient),
			s.Limits.BytesPerClient.String(), 0, 1 << 60,
		},
		{
			"limits.watchesPerClient", s.Limits.WatchesPerClient,
			strconv.FormatInt(s.Limits.WatchesPerClient, 10), 0, 1 << 40,
		},
		{
			"limits.dedupEntriesPerClient", s.Limits.DedupEntriesPerClient,
			strconv.FormatInt(s.Limits.DedupEntriesPerClient, 10), 0, 1 << 40,
		},
		{
			"limits.requestsPerClient", s.Limits.RequestsPerClient,
			strconv.FormatInt(s.Limits.RequestsPerClient, 10), 1, 1 << 20,
		},
		{"node.minFreeDisk", int64(s.Node.MinFreeDisk), s.Node.MinFreeDisk.String(), 0, 1 << 60},
	} {
		if limit.value < limit.least || limit.value > limit.most {
			return &Error{limit.path, limit.text, "must be between " +
				strconv.FormatInt(limit.least, 10) + " and " + strconv.FormatInt(limit.most, 10)}
		}
	}
	const longest = 100 * 365 * 24 * time.Hour // MQTT counts seconds in 32 bits
	if s.Watch.NotificationExpiry < time.Second || s.Watch.NotificationExpiry > longest {
		return &Error{
			"watch.notificationExpiry", s.Watch.NotificationExpiry.String(),
			"must be at least 1s, and at most 100 years",
		}
	}
	if s.Watch.TTL != 0 && s.Watch.TTL < time.Second {
		return &Error{"watch.ttl", s.Watch.TTL.String(), "must be 0 or at least 1s"}
	}
	return nil
}
