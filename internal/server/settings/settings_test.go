package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Flags override the environment, which overrides the file, which overrides the defaults.
func TestFlagsOverrideEnvironmentOverridesFile(t *testing.T) {
	file := write(t, "node: {id: file, dataDir: file}\nlimits:\n  keyBytes: 1KiB\n  keys: 7\nbroker:\n  addresses: [mqtt://a:1, mqtts://b]\nwatch:\n")
	environment := []string{
		"HOLDFAST_NODE_ID=environment", "HOLDFAST_LIMITS_KEYS=8",
		"HOLDFAST_PORT=tcp://1.2.3.4:5", "HOLDFAST_BROKER=mqtt://x", "OTHER=1",
	}
	s, warnings, err := Load(file, environment,
		map[string]string{"node.id": "flag", "watch.ttl": "90s"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Node.ID != "flag" || s.Node.DataDir != "file" || s.Limits.Keys != 8 ||
		s.Limits.KeyBytes != 1024 || s.Limits.ValueBytes != 4<<20 ||
		len(s.Broker.Addresses) != 2 || s.Watch.TTL != 90*time.Second {
		t.Errorf("%+v", s)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "HOLDFAST_PORT") {
		t.Errorf("warnings %v", warnings)
	}
}

// An error about broker.addresses does not show a password.
func TestErrorsHidePasswords(t *testing.T) {
	for name, load := range map[string]func(value string) error{
		"environment": func(value string) error {
			_, _, err := Load("", []string{"HOLDFAST_BROKER_ADDRESSES=" + value}, nil)
			return err
		},
		"flag": func(value string) error {
			_, _, err := Load("", nil, map[string]string{"broker.addresses": value})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := load(`mqtt://u:p"x@h`); err == nil || strings.Contains(err.Error(), `p"x`) ||
				strings.Contains(err.Error(), `p\"x`) {
				t.Error(err)
			}
		})
	}
}

// An error names the field, the value and the reason.
func TestSettingsErrorsNameFieldValueAndReason(t *testing.T) {
	for text, want := range map[string][]string{
		"node: {ID: x}":                        {"node.ID", "node.id"},
		"broker: {password: 'pw@1'}":           {"broker.password", "no such setting"},
		"node.id: a":                           {"node.id", "nested"},
		"identity: {attributeProperties: [~]}": {"identity.attributeProperties", "quotes"},
		"broker: {addresses: [{host: h}]}":     {"broker.addresses", "quotes"},
		"nodes: {id: x}":                       {"nodes.id", "no such setting"},
		"node: {id: a/b}":                      {"node.id", "a/b"},
		"limits: {keyBytes: many}":             {"limits.keyBytes", "many", "64KiB"},
		"limits: {keyBytes: 1GiB}":             {"limits.keyBytes", "1GiB", "between"},
		"limits: {dedupEntries: 1}":            {"limits.dedupEntries", "1", "between"},
		"watch: {ttl: 5}":                      {"watch.ttl", "5", "duration"},
		"watch: {ttl: 5ms}":                    {"watch.ttl", "5ms"},
		"protocol: {dialect: klingon}": {
			"protocol.dialect", "klingon",
			"auto or documented or sdk",
		},
		"protocol: {caseInsensitive: maybe}": {
			"protocol.caseInsensitive", "maybe",
			"true or false",
		},
		"broker: {addresses: []}":                 {"broker.addresses"},
		"broker: {addresses: ['ftp://x']}":        {"broker.addresses", "ftp://x"},
		"broker: {addresses: ['mqtt://h:99999']}": {"broker.addresses", "99999"},
		"broker: {driver: embedded}":              {"broker.driver", "embedded", "holdfast dev"},
		"broker: {api: {url: http://e:18083}}": {
			"broker.api.url", "http://e:18083",
			"requires broker.driver emqx",
		},
		"broker: {driver: emqx, api: {url: e}}": {"broker.api.url", "e", "want http"},
		"broker: {tls: {certFile: x}}":          {"broker.tls.certFile", "x", "keyFile"},
		"admin: {listen: '0.0.0.0:1'}":          {"admin.listen", "0.0.0.0:1", "loopback"},
		"cluster: {listen: '0.0.0.0:7400', tls: {insecure: true}}\nhealth: {listen: '127.0.0.1:7400'}": {"health.listen", "cluster.listen"},
		"cluster: {peers: ['a@b=h:1']}": {
			"cluster.peers",
			"id=host:port",
		},
		"identity: {usernameProperty: __x}": {"identity.usernameProperty", "protocol"},
		"health: {listen: x}": {
			"health.listen",
			"x",
		},
		"cluster: {peers: ['n1=h:1', 'n2=h:2']}": {
			"cluster.tls",
			"insecure",
		},
		"cluster: {listen: '127.0.0.1:1'}": {
			"cluster.listen",
			"has no effect",
		},
		"node: {id: [a, b]}": {
			"node.id",
			"one value",
		},
		"node: {id: a}\n---\nnode: {id: b}\n": {"more than one YAML document"},
		"node: {id: a}\nnode: {id: b}\n":      {"already defined"},
		"node: [":                             {"yaml"},
		"log: {level: loud}":                  {"log.level", "loud"},
		"cluster: {peers: ['n1=h:1', 'n1=h:2']}": {
			"cluster.peers",
			"twice",
		},
		"cluster: {profile: wan}": {
			"cluster.profile",
			"wan", "lan or edge",
		},
		"broker: {addresses: ['mqtt://u:pw@h:1']}": {"broker.addresses"},
		"broker: {addresses: [mqtt://b:1], tls: {caFile: ca.pem}}": {
			"broker.tls",
			"ca.pem", "has no effect",
		},
		"broker: {driver: emqx, api: {url: 'https://k:pw@h:1', keyFile: k}}": {
			"broker.api.url",
			"without a login",
		},
		"broker: {driver: emqx, api: {url: 'http://h:1', keyFile: k, caFile: ca.pem}}": {"broker.api.caFile", "has no effect"},
		"admin: {listen: '', tls: {certFile: c.pem}}":                                  {"admin.tls", "c.pem", "has no effect"},
		"audit: {file: a.log, files: 1000000}":                                         {"audit.files", "1000000", "at most"},
		"mirrors: [a*]": {
			"mirrors",
			"keys", "topic",
		},
		"mirrors: [{keys: 'a*', topic: t/, x: y}]": {
			"mirrors",
			"keys", "topic",
		},
		"mirrors: 'a*'": {
			"mirrors",
			"pattern=topic/",
		},
		"mirrors: [{keys: '[', topic: t/}]": {
			"mirrors", "[=t/",
			"syntax",
		},
		"mirrors: [{keys: a, topic: t}]": {
			"mirrors", "a=t",
			"must end with '/'",
		},
		"mirrors: [{keys: a, topic: /}]": {
			"mirrors", "a=/",
			"before it",
		},
		"mirrors: [{keys: a, topic: 't/+/'}]": {
			"mirrors", "t/+/",
			"none of",
		},
		"mirrors: [{keys: a, topic: $SYS/}]": {
			"mirrors", "$SYS/",
			"begin with '$'",
		},
		"mirrors: [{keys: a, topic: clients/x/}]": {
			"mirrors", "clients/x/",
			"replies",
		},
		"mirrors: [{keys: a, topic: \"t/\\a/\"}]": {
			"mirrors",
			"control characters",
		},
		"mirrors: [{keys: a, topic: \"\\ufffe/\"}]": {
			"mirrors",
			"no characters",
		},
		"mirrors: [{keys: a, topic: " + strings.Repeat("t/", 65) + "}]": {"mirrors", "64 levels"},
		"mirrors: [{keys: a, topic: t/}, {keys: b, topic: t/u/}]": {
			"mirrors", "b=t/u/",
			"a=t/",
		},
	} {
		t.Run(text, func(t *testing.T) {
			_, _, err := Load(write(t, text), nil, nil)
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			for _, part := range want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "pw@") {
				t.Errorf("a password is shown: %v", err)
			}
		})
	}
}

// What `config show` prints can be used as a file.
func TestShownSettingsCanBeUsedAsAFile(t *testing.T) {
	s := Default()
	s.Identity.AttributeProperties = []string{"a,b", "c"}
	s.Limits.Keys, s.Watch.TTL, s.Protocol.CaseInsensitive = 5, 90*time.Second, true
	s.Mirrors = []fsm.Mirror{
		{Keys: "a=,[b]*", Topic: "dashboard/"},
		{Keys: "*", Topic: "all/keys/"},
	}
	text, err := s.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := Load(write(t, string(text)), nil, nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	shown, err := again.YAML()
	if err != nil || string(shown) != string(text) {
		t.Errorf("%v\n%s\nthen\n%s", err, text, shown)
	}
}

func TestValuesAreShownAsTheyAreParsed(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "65536": 65536, "64KiB": 65536, "4MiB": 4 << 20,
		"1GB": 1e9, "auto": Auto,
	} {
		t.Run(text, func(t *testing.T) {
			var size Size
			if err := size.Set(text); err != nil || size != want {
				t.Errorf("%q: %d, %v", text, size, err)
			}
			var again Size
			if err := again.Set(size.String()); err != nil || again != size {
				t.Errorf("%q is shown as %q", text, size.String())
			}
		})
	}
	for _, text := range []string{"", "-1", "x", "1.5MiB", "9999999TiB", "1 PiB"} {
		t.Run(text, func(t *testing.T) {
			var size Size
			if err := size.Set(text); err == nil {
				t.Errorf("%q is read as %d", text, size)
			}
		})
	}
	var elements list
	if err := elements.Set(`"a,b", c`); err != nil || len(elements) != 2 || elements[0] != "a,b" {
		t.Errorf("%q, %v", elements, err)
	}
	if err := elements.Set("a\nb"); err == nil {
		t.Errorf("a second line is left out: %q", elements)
	}
}

func TestReplicatedSettingsFollowTheConfiguration(t *testing.T) {
	s := Default()
	s.Protocol.Dialect, s.Limits.Keys, s.Watch.TTL = "sdk", 5, time.Minute
	r := s.Replicated()
	if r.Dialect != 2 || r.Limits.Keys != 5 || !r.TotalBytesAuto || r.WatchTTL != 60_000 ||
		r.NotificationExpiry != 30_000 {
		t.Errorf("%+v", r)
	}
	s.Mirrors = []fsm.Mirror{{Keys: "*", Topic: "all/"}}
	if r = s.Replicated(); len(r.Mirrors) != 1 {
		t.Errorf("%+v", r.Mirrors)
	}
	s.Limits.TotalBytes = 7
	if r = s.Replicated(); r.Limits.TotalBytes != 7 || r.TotalBytesAuto {
		t.Errorf("%+v", r.Limits)
	}
	for memory, want := range map[int64]int64{1000: 250, 512 << 20: 128 << 20, 4<<30 +
		100<<20: 1 << 30} {
		if got := AutoTotalBytes(memory); got != want {
			t.Errorf("%d bytes of memory: %d, want %d", memory, got, want)
		}
	}
}
