// Package architecture tests the structure of the project: which package may import which, what the
// documentation names, and what binaries are built of.
package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// rule says what a package may import beside the standard library: packages of this module by their
// paths, others by their prefixes.
type rule struct {
	path   string
	own    []string // paths of packages of this module, without the prefix holdfast/
	others []string // prefixes of import paths outside this module
	why    string
}

func rules() []rule {
	return []rule{
		{"hlc", nil, nil, "a value type that everything else is built on"},
		{"resp", nil, nil, "a codec that everything else is built on"},
		{"internal/topics", nil, nil, "names that both the store and its clients know"},
		{"internal/policy", nil, nil, "it decides outcomes on every replica, so it must be pure"},
		{
			"internal/glob", nil, nil,
			"it decides which keys match on every replica, so it must be pure",
		},
		{
			"fsm",
			[]string{"hlc", "internal/glob", "internal/policy", "internal/topics"},
			[]string{
				"google.golang.org/protobuf/encoding/protowire",
				"github.com/klauspost/compress/zstd", "github.com/tidwall/btree",
				"github.com/cespare/xxhash",
			},
			"the state machine must not know the world: all that it knows is in the log entry",
		},
		{"internal/durable", nil, nil, "files know nothing of what is in them"},
		{
			"cluster/wal",
			[]string{"internal/durable"},
			[]string{"github.com/hashicorp/raft"},
			"files of entries know nothing of what is in the entries",
		},
		{
			"cluster/raftlog",
			[]string{"cluster/wal", "fsm", "internal/durable"},
			[]string{"github.com/hashicorp/", "go.etcd.io/bbolt"},
			"what is on the disk knows nothing of members",
		},
		{
			"cluster/raftfix", nil,
			[]string{"github.com/hashicorp/raft"},
			"what works around raft knows nothing of what is replicated",
		},
		{
			"cluster/replica",
			[]string{"fsm"},
			[]string{"github.com/hashicorp/raft"},
			"applying entries knows nothing of members and leaders",
		},
		{
			"cluster/propose",
			[]string{"fsm"},
			[]string{"github.com/hashicorp/raft"},
			"making entries knows nothing of members",
		},
		{
			"cluster/readindex",
			[]string{"fsm"},
			nil,
			"reads know the state, and are told of the leadership",
		},
		{
			"cluster/peer", nil,
			[]string{"github.com/hashicorp/raft"},
			"what members say to each other knows nothing of who says it",
		},
		{
			"cluster/offer",
			[]string{"cluster/peer", "fsm"},
			[]string{"golang.org/x/sync/semaphore"},
			"settings are offered through functions: nothing is known of the node",
		},
		{
			"cluster/membership",
			[]string{"cluster/peer", "cluster/propose", "fsm"},
			[]string{"github.com/hashicorp/raft", "golang.org/x/sync/semaphore"},
			"who is a member is changed through functions: nothing is known of the node",
		},
		{
			"cluster",
			[]string{
				"cluster/raftfix", "cluster/membership", "cluster/offer", "cluster/peer",
				"cluster/propose", "cluster/raftlog", "cluster/readindex", "cluster/replica", "fsm",
				"hlc", "internal/durable",
			},
			[]string{"github.com/hashicorp/", "github.com/prometheus/client_golang"},
			"replication knows the state machine, and nothing of MQTT",
		},
		{
			"cluster/transport",
			[]string{"cluster/peer", "cluster/raftlog", "internal/ordered", "internal/tlsconfig"},
			[]string{
				"github.com/hashicorp/raft", "golang.org/x/sync/semaphore",
				"golang.org/x/sys/unix",
			},
			"the connections between members know who is meant, and nothing of what is said",
		},
		{"internal/backoff", nil, nil, "a wait knows nothing of what is tried"},
		{"internal/ordered", nil, nil, "a container that everything else is built on"},
		{
			"internal/brokercheck",
			[]string{"internal/mqttconn"},
			[]string{"github.com/eclipse/paho.golang/packets"},
			"what a broker does with a session, and nothing of the store",
		},
		{"internal/pki", []string{"internal/durable"}, nil, "certificates know nothing of TLS"},
		{
			"internal/tlsconfig",
			[]string{"internal/pki"},
			nil,
			"certificates know nothing of who uses them",
		},
		{
			"internal/server/certwatch",
			[]string{"internal/pki"},
			[]string{"github.com/prometheus/client_golang"},
			"until when certificates are valid, and nothing of who uses them",
		},
		{
			"internal/server/httpapi",
			[]string{
				"cluster", "cluster/membership", "cluster/peer", "cluster/raftlog", "fsm",
				"hlc", "internal/glob", "internal/tlsconfig", "mqttfront/mirror",
			},
			[]string{
				"github.com/hashicorp/raft", "github.com/prometheus/client_golang",
				"github.com/prometheus/client_model",
			},
			"the endpoints show the cluster, the state and the mirrors, and nothing else of MQTT",
		},
		{
			"mqttfront/exclusive",
			[]string{"hlc", "internal/mqttconn", "internal/topics", "mqttfront/wire"},
			nil,
			"who else is at the broker is asked through functions: nothing is known of sessions and leaderships",
		},
		{
			"mqttfront/broker",
			[]string{"internal/mqttconn"},
			nil,
			"what differs between brokers is known by the drivers alone",
		},
		{
			"mqttfront/wire",
			[]string{
				"resp", "fsm", "hlc", "internal/glob", "internal/mqttconn", "internal/policy",
				"internal/topics",
			},
			[]string{"github.com/eclipse/paho.golang/packets"},
			"the protocol's bytes know nothing of what becomes of a request",
		},
		{
			"mqttfront/session",
			[]string{"internal/mqttconn", "internal/topics", "mqttfront/wire"},
			[]string{
				"github.com/eclipse/paho.golang/packets",
				"github.com/prometheus/client_golang",
			},
			"what brings requests knows nothing of the state and of payloads",
		},
		{
			"mqttfront/outbox",
			[]string{"fsm", "internal/mqttconn", "mqttfront/wire"},
			[]string{
				"github.com/eclipse/paho.golang/packets",
				"github.com/prometheus/client_golang",
			},
			"what delivers replies and notifications knows nothing of requests' states and of the log",
		},
		{
			"mqttfront/mirror",
			[]string{"fsm", "internal/mqttconn", "internal/topics"},
			[]string{
				"github.com/eclipse/paho.golang/packets",
				"github.com/prometheus/client_golang",
			},
			"what keeps retained messages like the state knows nothing of requests",
		},
		{
			"mqttfront/metrics",
			[]string{
				"fsm", "mqttfront/mirror", "mqttfront/outbox", "mqttfront/session",
				"mqttfront/wire",
			},
			[]string{"github.com/prometheus/client_golang"},
			"what is counted knows nothing of who counts",
		},
		{
			"mqttfront/leader",
			[]string{
				"fsm", "internal/mqttconn", "internal/policy", "internal/topics",
				"mqttfront/broker", "mqttfront/metrics", "mqttfront/outbox", "mqttfront/session",
				"mqttfront/wire",
			},
			nil,
			"what executes requests is a session's handler, and knows nothing of connections and of Raft: it is given a Store and a Sender",
		},
		{
			"mqttfront",
			[]string{
				"fsm", "internal/mqttconn", "mqttfront/broker", "mqttfront/exclusive",
				"mqttfront/leader", "mqttfront/metrics", "mqttfront/mirror", "mqttfront/outbox",
				"mqttfront/session", "mqttfront/wire",
			},
			nil,
			"the front end connects its parts, and knows nothing of Raft: it is given a Store",
		},
		{
			"mqttfront/embedded",
			[]string{
				"mqttfront/broker", "internal/mqttconn", "internal/ordered",
				"internal/topics",
			},
			[]string{"github.com/mochi-mqtt/server/v2", "github.com/eclipse/paho.golang/packets"},
			"the broker serves the front end's Driver",
		},
		{
			"mqttfront/presence",
			[]string{"mqttfront/broker", "internal/mqttconn"},
			[]string{"github.com/eclipse/paho.golang/packets"},
			"who is there is learnt from a broker's messages, whatever the broker",
		},
		{
			"mqttfront/mosquitto",
			[]string{"mqttfront/broker", "mqttfront/presence"},
			[]string{"github.com/eclipse/paho.golang/packets"},
			"a driver knows its broker, and nothing of the store",
		},
		{
			"mqttfront/emqx",
			[]string{"mqttfront/broker", "mqttfront/presence"},
			[]string{"github.com/eclipse/paho.golang/packets"},
			"a driver knows its broker, and nothing of the store",
		},
		{
			"client",
			[]string{"resp", "hlc", "internal/glob", "internal/mqttconn", "internal/topics"},
			[]string{"github.com/eclipse/paho.golang/packets", "golang.org/x/sys/unix"},
			"the client library shares no code with the server beyond the protocol",
		},
		{
			"client/holdfasttest",
			[]string{"client", "internal/server/settings", "internal/server/trial"},
			nil,
			"other people's tests start the whole product, and know nothing of what it is made of",
		},
		{
			"internal/server/settings",
			[]string{"fsm", "internal/glob", "internal/mqttconn", "internal/topics"},
			[]string{"go.yaml.in/yaml/v3"},
			"settings are read and checked, and applied by others",
		},
		{
			"internal/server/node",
			[]string{
				"cluster", "cluster/offer", "cluster/peer", "cluster/raftlog", "fsm",
				"internal/server/audit", "internal/durable", "internal/mqttconn",
				"internal/policy/policyfile",
				"internal/server/settings", "mqttfront", "mqttfront/broker", "mqttfront/metrics",
			},
			[]string{"github.com/hashicorp/raft", "github.com/prometheus/client_golang"},
			"a node is the cluster and the front end, connected: it knows no command line and no HTTP",
		},
		{
			"internal/server/trial",
			[]string{
				"cluster", "cluster/offer", "cluster/peer", "cluster/raftlog",
				"internal/server/httpapi",
				"internal/mqttconn", "internal/server/node", "internal/server/settings",
				"mqttfront",
				"mqttfront/embedded", "mqttfront/wire",
			},
			[]string{"github.com/hashicorp/raft", "github.com/prometheus/client_golang"},
			"a cluster in one process is made of whole nodes",
		},
		{
			"internal/policy/policyfile",
			[]string{"internal/policy"},
			[]string{"go.yaml.in/yaml/v3"},
			"a file becomes a policy, and nothing else",
		},
		{
			"internal/mqttconn/mqtttest",
			[]string{"internal/mqttconn"},
			[]string{"github.com/eclipse/paho.golang/packets"},
			"a broker's end of a connection, for tests",
		},
		{
			"internal/testcert",
			[]string{"internal/pki"},
			nil,
			"certificates for tests know nothing of the product",
		},
		{"internal/tcpproxy", nil, nil, "a proxy for tests knows nothing of what passes"},
		{"internal/testwait", nil, nil, "a wait in tests knows nothing of what it waits for"},
		{"internal/server/logqueue", nil, nil, "lines of a log know nothing of what is in them"},
		{
			"internal/server/audit",
			[]string{"fsm"},
			nil,
			"what was applied is written down, and nothing else",
		},
		{
			"internal/load", nil,
			[]string{"github.com/HdrHistogram/hdrhistogram-go"},
			"load knows nothing of what it is put on",
		},
		{
			"internal/mqttconn", nil,
			[]string{"github.com/eclipse/paho.golang/packets"},
			"connections know nothing of the store",
		},
	}
}

// pureForbidden are the packages of the standard library that the state machine and the packages
// below it must not import.
func pureForbidden() []string {
	return []string{
		"time", "math/rand", "math/rand/v2", "crypto/rand", "os", "net", "sync",
		"runtime", "log", "log/slog",
	}
}

type listed struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T) map[string]listed {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports",
		"holdfast/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]listed{}
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages[strings.TrimPrefix(p.ImportPath, "holdfast/")] = p
	}
}

// check returns the imports that break a rule.
func check(r rule, imports []string) (broken []string) {
	for _, path := range imports {
		own, isOwn := strings.CutPrefix(path, "holdfast/")
		standard := !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") && !isOwn
		switch {
		case isOwn && (own == "internal/backoff" || slices.Contains(r.own, own)):
			// a wait is like the standard library's
		case standard:
		case !isOwn && slices.ContainsFunc(r.others, func(allowed string) bool {
			return path == allowed || strings.HasPrefix(path, strings.TrimSuffix(allowed, "/")+"/")
		}):
		default:
			broken = append(broken, path)
		}
	}
	return broken
}

func TestImportsPointOneWay(t *testing.T) {
	packages := list(t)
	for _, r := range rules() {
		p, ok := packages[r.path]
		if !ok {
			t.Errorf("there is no package %s", r.path)
			continue
		}
		for _, path := range check(r, p.Imports) {
			t.Errorf("%s imports %s: %s", r.path, path, r.why)
		}
	}
	for _, pure := range []string{
		"hlc", "resp", "fsm", "internal/policy", "internal/glob",
		"internal/topics",
	} {
		for _, path := range packages[pure].Imports {
			if slices.Contains(pureForbidden(), path) {
				t.Errorf("%s imports %s: what it computes must depend on its arguments alone", pure,
					path)
			}
		}
	}
	for path, p := range packages {
		if isTest := strings.HasPrefix(path, "test/"); !isTest &&
			!strings.HasPrefix(path, "cmd/") &&
			!slices.ContainsFunc(rules(), func(r rule) bool { return r.path == path }) {
			t.Errorf("%s has no rule", path)
		} else if !isTest {
			for _, helper := range []string{
				"internal/mqttconn/mqtttest", "internal/testcert",
				"internal/tcpproxy", "internal/testwait",
			} {
				if slices.Contains(p.Imports, "holdfast/"+helper) {
					t.Errorf("%s imports %s, which is for tests", path, helper)
				}
			}
		}
		if !strings.HasPrefix(path, "cmd/") &&
			slices.ContainsFunc(p.Imports,
				func(i string) bool { return strings.HasPrefix(i, "holdfast/cmd/") }) {
			t.Errorf("%s imports a command", path)
		}
	}
}

// check returns the imports that a rule does not allow.
func TestCheckSeesABrokenRule(t *testing.T) {
	r := rule{path: "x", own: []string{"hlc"}, others: []string{"github.com/a/"}}
	broken := check(r, []string{
		"fmt", "holdfast/hlc", "holdfast/fsm", "github.com/a/b",
		"github.com/b/c",
	})
	if !slices.Equal(broken, []string{"holdfast/fsm", "github.com/b/c"}) {
		t.Errorf("%v", broken)
	}
}
