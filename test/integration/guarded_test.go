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
)

// guarded is Mosquitto with the whole configuration that the documentation gives: TLS, the identity plugin, dynamic security, and the access
// control list. Clients of the tests come by a second listener without TLS.
type guarded struct {
	*mosquitto
	secure      string // address of the listener with TLS
	authorities *testcert.Authority
	users       string // file of the dynamic security plugin
}

const password = "secret"

func startGuarded(t *testing.T, extra ...string) *guarded {
	t.Helper()
	g := &guarded{authorities: testcert.NewAuthority(t)}
	g.authorities.Issue("broker", "127.0.0.1")
	folder := t.TempDir()
	g.users = filepath.Join(folder, "dynamic-security.json")
	if output, err := exec.CommandContext(t.Context(), need(t, "mosquitto_ctrl"), "dynsec", "init", g.users, "admin", password).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	// As docs/brokers/mosquitto.md says: else the plugin lets everybody receive everything, before the list is asked.
	users, err := os.ReadFile(g.users)
	if err == nil {
		closed := regexp.MustCompile(`"publishClientReceive":\s*true`).ReplaceAll(users, []byte(`"publishClientReceive": false`))
		if bytes.Equal(closed, users) {
			t.Fatal("the dynamic security plugin's file has another form")
		}
		err = os.WriteFile(g.users, closed, 0o600)
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
		"listener 8883", fmt.Sprintf("listener %d 127.0.0.1", secure), "/etc/mosquitto/holdfast/acl", acl, "/etc/mosquitto/holdfast", filepath.Dir(g.authorities.File("ca.crt")),
		"holdfast_identity.so", buildPlugin(t), "/var/lib/mosquitto", folder,
	).Replace(string(access))
	port := freePort(t)
	g.mosquitto = &mosquitto{address: fmt.Sprintf("127.0.0.1:%d", port), config: filepath.Join(folder, "mosquitto.conf")}
	text := fmt.Sprintf("include_dir %s\nlog_dest stderr\nuser root\nlistener %d 127.0.0.1\n%s\n%s\n", flow(t), port, lines, strings.Join(extra, "\n"))
	if err := os.WriteFile(g.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g.start(t)
	for _, user := range []string{"holdfast", "press", "robot"} {
		g.control(t, "createClient", user, "-p", password)
	}
	return g
}

// control runs a command of mosquitto_ctrl as the administrator.
func (g *guarded) control(t *testing.T, arguments ...string) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(g.address)
	arguments = append([]string{"-h", "127.0.0.1", "-p", port, "-u", "admin", "-P", password, "dynsec"}, arguments...)
	output, err := exec.CommandContext(t.Context(), need(t, "mosquitto_ctrl"), arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return string(output)
}

// login connects a client of a user that has not subscribed to anything.
func (g *guarded) login(t *testing.T, id, user string) *peer {
	t.Helper()
	p, err := login(t, g.address, &paho.Connect{ClientID: id, CleanStart: true, KeepAlive: 30, Username: user, UsernameFlag: true, Password: []byte(password), PasswordFlag: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// as connects a client of a user that receives what comes to its response topic.
func (g *guarded) as(t *testing.T, id, user string) *peer {
	t.Helper()
	p := g.login(t, id, user)
	p.subscribe(p.topic)
	return p
}

// die lets a client with a will lose its connection, and waits until the broker has noticed. The properties of a will are those of a request
// on another client's key. (paho.golang leaves the properties of wills out.)
func (g *guarded) die(t *testing.T, payload string) {
	t.Helper()
	const id = "robot-3"
	_, port, _ := net.SplitHostPort(g.address)
	arguments := []string{
		"-V", "5", "-h", "127.0.0.1", "-p", port, "-i", id, "-u", "robot", "-P", password, "-t", "clients/" + id + "/x",
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
	connected, gone := regexp.MustCompile("as "+id+" "), regexp.MustCompile("Client "+id+`( \[.*\])? (closed its connection|disconnected: connection closed)`)
	count := func(line *regexp.Regexp) int { return len(line.FindAllString(g.output.String(), -1)) }
	before := [2]int{count(connected), count(gone)}
	p := start(t, need(t, "mosquitto_sub"), arguments...)
	eventually(t, "the client is connected", func() bool { return count(connected) > before[0] })
	p.kill()
	eventually(t, "the broker notices its end", func() bool { return count(gone) > before[1] })
}

// startGuardedServer starts a node behind the broker, with a policy that gives each client its own keys.
// It returns where it writes its audit log, too.
func startGuardedServer(t *testing.T, g *guarded) (s *server, audit string) {
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
	s = newServer(t, "mqtts://"+g.secure, t.TempDir(), "--broker.driver", "mosquitto", "--broker.tls.caFile", g.authorities.File("ca.crt"),
		"--broker.username", "holdfast", "--broker.passwordFile", secret, "--policyFile", policy,
		"--identity.clientIdProperty", "$holdfast-client-id", "--identity.usernameProperty", "$holdfast-username",
		"--audit.file", filepath.Join(folder, "audit.jsonl"))
	s.waitReady(t)
	eventually(t, "the node can send clients away", func() bool { return strings.Contains(s.output.String(), "client-disconnect feed is up") })
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
	source := copyOf(t, filepath.Join(deployed, "identity")) // not within Do, which a failed test would leave done
	plugin.once.Do(func() {
		folder := filepath.Dir(binary)
		output, err := exec.Command("make", "-C", source, "STRICT=1", "BUILD="+folder, "all", "test").CombinedOutput()
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

// copyOf copies a file or a folder into the test's temporary folder, which a chrooted broker can read, too (test/brokers).
func copyOf(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(from))
	if output, err := exec.Command("cp", "-r", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return to
}

// startOpen starts Mosquitto with the identity plugin and allows anonymous clients. The access list allows every topic: only the plugin denies.
func startOpen(t *testing.T) *guarded {
	t.Helper()
	folder := t.TempDir()
	passwords, acl := filepath.Join(folder, "passwords"), filepath.Join(folder, "acl")
	if output, err := exec.CommandContext(t.Context(), need(t, "mosquitto_passwd"), "-c", "-b", passwords, "holdfast", password).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if err := os.WriteFile(acl, []byte("topic readwrite #\ntopic read $SYS/#\nuser holdfast\ntopic readwrite #\ntopic read $SYS/#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := &guarded{authorities: testcert.NewAuthority(t)}
	g.authorities.Issue("broker", "127.0.0.1")
	secure := freePort(t)
	g.secure = fmt.Sprintf("127.0.0.1:%d", secure)
	g.mosquitto = startMosquitto(t, "user root", "plugin "+buildPlugin(t), "plugin_opt_bind_client_id false", "password_file "+passwords, "acl_file "+acl,
		fmt.Sprintf("listener %d 127.0.0.1", secure), "certfile "+g.authorities.File("broker.crt"), "keyfile "+g.authorities.File("broker.key"))
	return g
}

// startMembersBehind starts a cluster of three nodes behind a broker with the plugin, which they reach by TLS.
func startMembersBehind(t *testing.T, g *guarded) members {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	return startMembers(t, 3, "mqtts://"+g.secure,
		"--broker.tls.caFile", g.authorities.File("ca.crt"),
		"--broker.driver", "mosquitto", "--broker.username", "holdfast", "--broker.passwordFile", secret,
		"--identity.clientIdProperty", "$holdfast-client-id", "--identity.usernameProperty", "$holdfast-username")
}
