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
	"testing"
	"time"

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

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{authorities: testcert.NewAuthority(t)}
	g.authorities.Issue("broker", "127.0.0.1")
	plugin := t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "make", "-C", filepath.Join(deployed, "identity"), "BUILD="+plugin, "all", "test").CombinedOutput(); err != nil {
		t.Fatalf("the identity plugin: %v: %s", err, output)
	}
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
	acl, err := filepath.Abs(filepath.Join(deployed, "acl"))
	if err != nil {
		t.Fatal(err)
	}
	secure := freePort(t)
	g.secure = fmt.Sprintf("127.0.0.1:%d", secure)
	access, err := os.ReadFile(filepath.Join(deployed, "conf.d/access.conf"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.NewReplacer(
		"listener 8883", fmt.Sprintf("listener %d 127.0.0.1", secure), "/etc/mosquitto/holdfast/acl", acl, "/etc/mosquitto/holdfast", filepath.Dir(g.authorities.File("ca.crt")),
		"/usr/lib/x86_64-linux-gnu/holdfast_identity.so", filepath.Join(plugin, "holdfast_identity.so"), "/var/lib/mosquitto", folder,
	).Replace(string(access))
	port := freePort(t)
	g.mosquitto = &mosquitto{address: fmt.Sprintf("127.0.0.1:%d", port), config: filepath.Join(folder, "mosquitto.conf")}
	text := fmt.Sprintf("include_dir %s\nlog_dest stderr\nuser root\nlistener %d 127.0.0.1\n%s\n", flow(t), port, lines)
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
	arguments = append([]string{"-p", port, "-u", "admin", "-P", password, "dynsec"}, arguments...)
	output, err := exec.CommandContext(t.Context(), need(t, "mosquitto_ctrl"), arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return string(output)
}

// as connects a client with a login.
func (g *guarded) as(t *testing.T, id, user string) *peer {
	t.Helper()
	p, err := login(t, g.address, &paho.Connect{ClientID: id, CleanStart: true, KeepAlive: 30, Username: user, UsernameFlag: true, Password: []byte(password), PasswordFlag: true})
	if err != nil {
		t.Fatal(err)
	}
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
		"-V", "5", "-p", port, "-i", id, "-u", "robot", "-P", password, "-t", "clients/" + id + "/x",
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
	connected, gone := "as "+id+" ", "Client "+id+" closed its connection"
	before := [2]int{strings.Count(g.output.String(), connected), strings.Count(g.output.String(), gone)}
	p := start(t, need(t, "mosquitto_sub"), arguments...)
	eventually(t, "the client is connected", func() bool { return strings.Count(g.output.String(), connected) > before[0] })
	p.kill()
	eventually(t, "the broker notices its end", func() bool { return strings.Count(g.output.String(), gone) > before[1] })
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
	eventually(t, "the node can send clients away", func() bool { return strings.Contains(s.output.String(), "the broker tells who goes away") })
	return s, filepath.Join(folder, "audit.jsonl")
}

// One client does not become another by anything that it sends, and does not get at what another one has.
func TestAttacksOnIdentity(t *testing.T) {
	g := startGuarded(t)
	s, audit := startGuardedServer(t, g)
	victim, attacker := g.as(t, "press-1", "press"), g.as(t, "robot-1", "robot")
	victim.subscribe(notificationsOf("press-1"))
	if reply := victim.call(request{payload: array("SET", "own/press-1", "mine"), properties: []string{"__ts", now()}}); string(reply.Payload) != "+OK\r\n" {
		t.Fatalf("the victim's own key: %q", reply.Payload)
	}
	if reply := victim.call(request{payload: array("SET", "user/press", "mine"), properties: []string{"__ts", now()}}); string(reply.Payload) != "+OK\r\n" {
		t.Fatalf("the victim's user's key: %q", reply.Payload)
	}
	if reply := victim.call(request{payload: array("KEYNOTIFY", "own/press-1")}); string(reply.Payload) != "+OK\r\n" {
		t.Fatalf("watch: %q", reply.Payload)
	}

	const stampedID, stampedUser = "$holdfast-client-id", "$holdfast-username"
	forgeries := map[string][]string{
		"forged __srcId":             {"__srcId", "press-1"},
		"forged property":            {stampedID, "press-1"},
		"doubled property":           {stampedID, "press-1", stampedID, "press-1"},
		"property and __srcId":       {stampedID, "press-1", "__srcId", "press-1", stampedUser, "press"},
		"forged user name":           {stampedUser, "press"},
		"empty property":             {stampedID, "", "__srcId", "press-1"},
		"property in another case":   {"$Holdfast-Client-Id", "press-1", "__srcId", "press-1"},
		"many properties":            append(bytesOf(stampedID, "press-1", 100), "__srcId", "press-1"),
		"property behind the others": {"__srcId", "press-1", "a", "b", stampedID, "press-1"},
	}
	tried := 0
	for name, properties := range forgeries {
		for _, command := range []string{
			array("SET", "own/press-1", "stolen"), array("GET", "own/press-1"), array("DEL", "own/press-1"), array("VDEL", "own/press-1", "mine"),
			array("KEYNOTIFY", "own/press-1"), array("KEYNOTIFY", "own/press-1", "STOP"), array("SET", "own/press-1", "stolen", "NEX", "PX", "10000"),
			array("GET", "user/press"),
		} {
			tried++
			reply := attacker.call(request{payload: command, properties: append([]string{"__ts", now(), "__ft", now()}, properties...)})
			if !bytes.Contains(reply.Payload, []byte("not authorized")) {
				t.Errorf("%s: %q is answered %q", name, command, reply.Payload)
			}
		}
	}
	if reply := victim.call(request{payload: array("GET", "own/press-1")}); string(reply.Payload) != "$4\r\nmine\r\n" {
		t.Errorf("the victim's key: %q", reply.Payload)
	}

	// A request with another client's response topic, or a node's own topic, is not answered, and its client sent away.
	for _, topic := range []string{victim.topic, "clients/press-1/anything", "clients/press-1", "holdfast/holdfast/n1/probe", notificationsOf("press-1")[:60]} {
		tried++
		offender := g.as(t, "robot-2", "robot")
		offender.publish(request{payload: array("SET", "own/robot-2", "injected"), topic: topic, properties: []string{"__ts", now()}})
		if reason := offender.end(); reason != 0x98 {
			t.Errorf("response topic %s: ended with 0x%02X", topic, reason)
		}
	}
	attacker = g.as(t, "robot-1", "robot") // of the same user, which was sent away

	// A will is no request, whatever it says.
	for _, command := range []string{array("SET", "own/press-1", "stolen"), array("GET", "own/press-1"), array("KEYNOTIFY", "own/press-1", "STOP")} {
		tried++
		g.die(t, command)
	}

	if reply := attacker.call(request{payload: array("GET", "own/robot-1")}); string(reply.Payload) != "$-1\r\n" {
		t.Errorf("the attacker gets %q on %s", reply.Payload, reply.Topic)
	}
	if reply := victim.call(request{payload: array("GET", "own/press-1")}); string(reply.Payload) != "$4\r\nmine\r\n" {
		t.Errorf("the victim's key: %q", reply.Payload)
	}

	// The watch is still there, and the victim's alone.
	victim.publish(request{payload: array("SET", "own/press-1", "changed"), properties: []string{"__ts", now()}})
	if note, reply := victim.receive(), victim.receive(); !bytes.Contains(reply.Payload, []byte("OK")) || !bytes.Contains(note.Payload, []byte("NOTIFY")) {
		t.Errorf("%q, %q", reply.Payload, note.Payload)
	}
	t.Logf("%d attacks by what a request says, all stopped", tried)

	// And it is written down who did what, by which rule.
	s.stop()
	lines, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"command":"SET","clientId":"press-1","username":"press","key":"own/press-1","outcome":"done","rule":1,"version":"`,
		`"command":"DEL","clientId":"robot-1","username":"robot","key":"own/press-1","outcome":"not authorized"}`,
	} {
		if !strings.Contains(string(lines), want) {
			t.Errorf("the audit log lacks %s:\n%s", want, tail(string(lines), 2000))
		}
	}
}

func bytesOf(key, value string, count int) (properties []string) {
	for range count {
		properties = append(properties, key, value)
	}
	return properties
}

// What only nodes may do, clients may not: the plugin and the access control list say so.
func TestAttacksOnTopics(t *testing.T) {
	g := startGuarded(t)
	startGuardedServer(t, g)
	victim, attacker := g.as(t, "press-1", "press"), g.as(t, "robot-1", "robot")
	victim.subscribe(notificationsOf("press-1"))
	tried := 0
	for _, filter := range []string{
		notificationsOf("press-1"), "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/#",
		"clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/+/command/notify/#", "clients/press-1/#", victim.topic, invokeTopic,
		"$share/group/" + invokeTopic, "$share/group/" + notificationsOf("press-1"), "holdfast/#", "$SYS/broker/log/N", "$CONTROL/dynamic-security/v1/response",
		"#", "+/#", "clients/#", "clients/+/services/#", "statestore/#",
	} {
		tried++
		_ = attacker.trySubscribe(filter) // a filter that is too wide may be granted; nothing of others may come by it
	}
	for topic, payload := range map[string]string{
		strings.TrimSuffix(notificationsOf("press-1"), "#") + "6B": "forged", victim.topic: "forged", "holdfast/holdfast/node/probe": "1 2 3",
		"holdfast/holdfast/node/presence": "1 2", "$CONTROL/dynamic-security/v1": `{"commands":[{"command":"disableClient","username":"press"}]}`,
	} {
		tried++
		response, err := g.as(t, "robot-2", "robot").client.Publish(t.Context(), &paho.Publish{Topic: topic, QoS: 1, Payload: []byte(payload)})
		if err == nil && (response == nil || response.ReasonCode < 0x80) {
			t.Errorf("published on %s", topic)
		}
	}
	for _, key := range []string{"own/press-1", "own/press-1/2"} {
		victim.call(request{payload: array("KEYNOTIFY", key)})
		victim.publish(request{payload: array("SET", key, "mine"), properties: []string{"__ts", now()}})
		if note, reply := victim.receive(), victim.receive(); !bytes.Contains(reply.Payload, []byte("OK")) || !bytes.Contains(note.Payload, []byte("NOTIFY")) {
			t.Errorf("%q, %q", reply.Payload, note.Payload)
		}
	}
	victim.call(request{payload: array("GET", "own/press-1")})
	// Whatever of the victim's had come to the attacker would be there first.
	attacker.publish(request{payload: array("GET", "own/robot-1")})
	select {
	case m := <-attacker.inbox:
		if m.Topic != attacker.topic {
			t.Errorf("the first that the attacker gets is %q on %s", m.Payload, m.Topic)
		}
	case <-time.After(wait):
		t.Error("the attacker gets nothing at all")
	}
	for _, id := range []string{
		"holdfast-out-0", "holdfast-n1-in", "holdfast-n1-in-01234567", "holdfast-ingest", "holdfast-n1-presence",
		"press-1", "press-1/services", "robot-1/services", "press", "robotics", // a user's clients have its name
	} {
		tried++
		if _, err := login(t, g.address, &paho.Connect{ClientID: id, Username: "robot", UsernameFlag: true, Password: []byte(password), PasswordFlag: true}); err == nil {
			t.Errorf("connected as %s", id)
		}
	}
	t.Logf("%d attacks on topics and client ids, all stopped", tried)
}

// A publisher with an invalid response topic is sent away, and can come back; who only pretends to be somebody does not get him sent away.
func TestSendAwayOnMosquitto(t *testing.T) {
	g := startGuarded(t)
	startGuardedServer(t, g)
	bystander, offender := g.as(t, "press-1", "press"), g.as(t, "robot-1", "robot")
	bystander.call(request{payload: array("GET", "own/press-1")}) // somebody leads
	offender.publish(request{payload: array("GET", "k"), topic: invokeTopic, properties: []string{"__srcId", "press-1", "$holdfast-client-id", "press-1", "$holdfast-username", "press"}})
	if reason := offender.end(); reason != 0x98 {
		t.Errorf("sent away with reason 0x%02X, want 0x98 (administrative action)", reason)
	}
	if reply := bystander.call(request{payload: array("GET", "own/press-1")}); string(reply.Payload) != "$-1\r\n" {
		t.Errorf("the bystander: %q", reply.Payload)
	}
	if reply := g.as(t, "robot-1", "robot").call(request{payload: array("GET", "own/robot-1")}); string(reply.Payload) != "$-1\r\n" {
		t.Errorf("the offender, back again: %q", reply.Payload)
	}
	if users, err := os.ReadFile(g.users); err != nil || bytes.Contains(users, []byte(`"disabled"`)) {
		t.Errorf("%v: a user was left disabled: %s", err, users)
	}
}
