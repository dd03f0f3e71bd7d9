package integration

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/testcert"
	"holdfast/internal/testwait"
)

// securedMosquitto is a Mosquitto with the identity plugin and a TLS listener for the nodes. The
// clients of the tests use a second listener, without TLS. startGuarded adds the documented dynamic
// security and access list.
type securedMosquitto struct {
	*mosquitto
	secure      string // address of the listener with TLS
	authorities *testcert.Authority
	users       string // path of the dynamic security plugin's JSON file
}

const password = "secret"

// startGuarded starts Mosquitto with the documented production configuration and extra lines, and
// creates its users.
func startGuarded(t *testing.T, extra ...string) *securedMosquitto {
	t.Helper()
	g := &securedMosquitto{authorities: testcert.NewAuthority(t)}
	g.authorities.Issue("broker", "127.0.0.1")
	folder := t.TempDir()
	g.users = filepath.Join(folder, "dynamic-security.json")
	if output, err := exec.CommandContext(t.Context(), need(t, "mosquitto_ctrl"), "dynsec", "init",
		g.users, "admin", password).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	// As docs/brokers/mosquitto.md says: with true, the dynamic security plugin allows every
	// delivery, and Mosquitto never checks the access list.
	users, err := os.ReadFile(g.users)
	if err == nil {
		restricted := regexp.MustCompile(`"publishClientReceive":\s*true`).ReplaceAll(users,
			[]byte(`"publishClientReceive": false`))
		if bytes.Equal(restricted, users) {
			t.Fatal("publishClientReceive is not in the dynamic security plugin's file")
		}
		err = os.WriteFile(g.users, restricted, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	acl := copyOf(t, filepath.Join(deployed, "acl"))
	secure := freePort(t)
	g.secure = fmt.Sprintf("127.0.0.1:%d", secure)
	access, err := os.ReadFile(filepath.Join(deployed, "conf.d/access.conf"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.NewReplacer(
		"listener 8883", fmt.Sprintf("listener %d 127.0.0.1", secure),
		"/etc/mosquitto/holdfast/acl", acl, "/etc/mosquitto/holdfast",
		filepath.Dir(g.authorities.File("ca.crt")),
		"holdfast_identity.so", buildPlugin(t), "/var/lib/mosquitto", folder,
	).Replace(string(access))
	port := freePort(t)
	g.mosquitto = &mosquitto{
		address: fmt.Sprintf("127.0.0.1:%d", port),
		config:  filepath.Join(folder, "mosquitto.conf"),
	}
	text := fmt.Sprintf("include_dir %s\nlog_dest stderr\nuser root\nlistener %d 127.0.0.1\n%s\n%s\n", flow(t), port, lines, strings.Join(extra, "\n"))
	if err := os.WriteFile(g.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g.start(t)
	for _, user := range []string{"holdfast", "press", "robot"} {
		g.dynsec(t, "createClient", user, "-p", password)
	}
	return g
}

// dynsec runs a dynsec command of mosquitto_ctrl as the administrator.
func (g *securedMosquitto) dynsec(t *testing.T, arguments ...string) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(g.address)
	arguments = append([]string{
		"-h", "127.0.0.1", "-p", port, "-u", "admin", "-P", password,
		"dynsec",
	}, arguments...)
	output, err := exec.CommandContext(t.Context(), need(t, "mosquitto_ctrl"),
		arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return string(output)
}

// login connects a client as a user. It has no subscription.
func (g *securedMosquitto) login(t *testing.T, id, user string) *peer {
	t.Helper()
	p, err := login(t, g.address, &paho.Connect{
		ClientID: id, CleanStart: true, KeepAlive: 30,
		Username: user, UsernameFlag: true, Password: []byte(password), PasswordFlag: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// connect is login, and subscribes to the client's response topic.
func (g *securedMosquitto) connect(t *testing.T, id, user string) *peer {
	t.Helper()
	p := g.login(t, id, user)
	p.subscribe(p.topic)
	return p
}

// publishWill connects robot-3 with a will and kills it, so that the broker publishes the will. The
// will looks like a request of press-1. It uses mosquitto_sub, because paho.golang does not encode
// the properties of a will.
func (g *securedMosquitto) publishWill(t *testing.T, payload string) {
	t.Helper()
	const id = "robot-3"
	_, port, _ := net.SplitHostPort(g.address)
	arguments := []string{
		"-V", "5", "-h", "127.0.0.1", "-p", port, "-i", id, "-u", "robot", "-P", password, "-t",
		"clients/" + id + "/x",
		"--will-topic", invokeTopic, "--will-qos", "1", "--will-payload", payload,
	}
	for _, property := range [][]string{
		{"response-topic", "clients/press-1/will"},
		{"correlation-data", "0123456789abcdef"},
		{"user-property", "$holdfast-client-id", "press-1"},
		{"user-property", "$holdfast-username", "press"},
		{"user-property", "__ts", now()},
	} {
		arguments = append(append(arguments, "-D", "will"), property...)
	}
	connected, gone := regexp.MustCompile("as "+id+" "),
		regexp.MustCompile("Client "+id+
			`( \[.*\])? (closed its connection|disconnected: connection closed)`)
	count := func(line *regexp.Regexp) int { return len(line.FindAllString(g.output.String(), -1)) }
	before := [2]int{count(connected), count(gone)}
	p := start(t, need(t, "mosquitto_sub"), arguments...)
	testwait.Until(t, "the client is connected",
		func() bool { return count(connected) > before[0] })
	p.kill()
	testwait.Until(t, "the broker logs that the client is gone",
		func() bool { return count(gone) > before[1] })
}

// startGuardedServer starts a node on the broker, with a policy that gives each client its own
// keys. audit is the path of its audit log.
func startGuardedServer(t *testing.T, g *securedMosquitto, extra ...string) (s *server,
	audit string,
) {
	t.Helper()
	folder := t.TempDir()
	policy, secret := filepath.Join(folder, "policy.yaml"), filepath.Join(folder, "password")
	rules := `principals: {clientIds: ["*"]}
stateStoreResources:
  - {method: ReadWrite, keys: ["own/{principal.clientId}", "own/{principal.clientId}/*", "user/{principal.username}"]}
  - {method: Read, keys: ["public/*"]}
`
	for file, content := range map[string]string{policy: rules, secret: password} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = newServer(t, "mqtts://"+g.secure, t.TempDir(), append([]string{
		"--broker.driver", "mosquitto", "--broker.tls.caFile", g.authorities.File("ca.crt"),
		"--broker.username", "holdfast", "--broker.passwordFile", secret, "--policyFile", policy,
		"--identity.clientIdProperty", "$holdfast-client-id", "--identity.usernameProperty",
		"$holdfast-username",
		"--audit.file", filepath.Join(folder, "audit.jsonl"),
	}, extra...)...)
	s.waitReady(t)
	testwait.Until(t, "the client-disconnect feed is up",
		func() bool { return strings.Contains(s.output.String(), "client-disconnect feed is up") })
	return s, filepath.Join(folder, "audit.jsonl")
}

// plugin is the identity plugin, built once for all tests.
var plugin struct {
	once sync.Once
	file string
	err  error
}

// buildPlugin builds and tests the identity plugin, once for all tests, and returns its file.
func buildPlugin(t testing.TB) string {
	t.Helper()
	// not within Do: if the copy fails there, Do counts as done for the other tests
	source := copyOf(t, filepath.Join(deployed, "identity"))
	plugin.once.Do(func() {
		folder := filepath.Dir(binary)
		output, err := exec.Command("make", "-C", source, "STRICT=1", "BUILD="+folder, "all",
			"test").CombinedOutput()
		if err != nil {
			plugin.err = fmt.Errorf("build and test the identity plugin: %w: %s", err, output)
		}
		plugin.file = filepath.Join(folder, "holdfast_identity.so")
	})
	if plugin.err != nil {
		t.Fatal(plugin.err)
	}
	return plugin.file
}

// copyOf copies a file or a folder into the test's temporary folder, which a chrooted broker can
// read, too (test/brokers).
func copyOf(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(from))
	if output, err := exec.Command("cp", "-r", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return to
}

// startOpen starts Mosquitto with the identity plugin and allows anonymous clients. The access list
// allows every topic: only the plugin denies.
func startOpen(t *testing.T) *securedMosquitto {
	t.Helper()
	folder := t.TempDir()
	passwords, acl := filepath.Join(folder, "passwords"), filepath.Join(folder, "acl")
	if output, err := exec.CommandContext(t.Context(), need(t, "mosquitto_passwd"), "-c", "-b",
		passwords, "holdfast", password).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if err := os.WriteFile(acl,
		[]byte("topic readwrite #\ntopic read $SYS/#\nuser holdfast\ntopic readwrite #\ntopic read $SYS/#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := &securedMosquitto{authorities: testcert.NewAuthority(t)}
	g.authorities.Issue("broker", "127.0.0.1")
	secure := freePort(t)
	g.secure = fmt.Sprintf("127.0.0.1:%d", secure)
	g.mosquitto = startMosquitto(t, "user root", "plugin "+buildPlugin(t),
		"plugin_opt_bind_client_id false", "password_file "+passwords, "acl_file "+acl,
		fmt.Sprintf("listener %d 127.0.0.1", secure), "certfile "+g.authorities.File("broker.crt"),
		"keyfile "+g.authorities.File("broker.key"))
	return g
}

// startMembersBehind starts a cluster of three nodes behind a broker with the plugin, which they
// reach by TLS.
func startMembersBehind(t *testing.T, g *securedMosquitto) members {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	return startMembers(t, 3, "mqtts://"+g.secure,
		"--broker.tls.caFile", g.authorities.File("ca.crt"),
		"--broker.driver", "mosquitto", "--broker.username", "holdfast", "--broker.passwordFile",
		secret,
		"--identity.clientIdProperty", "$holdfast-client-id", "--identity.usernameProperty",
		"$holdfast-username")
}
