package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/testwait"
)

// library is how one of the protocol's client libraries behaves on the wire, as its source says
// (github.com/Azure/iot-operations-sdks, commit febffe03). The Go library itself runs in test/sdk.
type library struct {
	name string
	// response topic of its requests; also the filter that it subscribes to
	response func(id string) string
	// filter that it subscribes to for notifications; nil if it never does
	notify func(id string) string
	// granted is the only reason code of the SUBACK for notify that the library accepts. 0xFF
	// stands for any QoS.
	granted byte
	extra   []string // user properties beyond those that all send
	expiry  uint32   // seconds
	px      []string // texts that it sends after PX; the store must accept each
}

func libraries() []library {
	const notify = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/"
	return []library{
		{
			// dotnet/src/…/StateStoreClient.cs: the notification filter has the client id as it is
			// and no key, and must be granted with QoS 1.
			name:     ".NET",
			response: func(id string) string { return "clients/" + id + "/" + invokeTopic },
			notify:   func(id string) string { return notify + id + "/command/notify" }, granted: 1,
			extra: []string{"__invId", "client"}, expiry: 10, px: []string{"100000", "100000.5"},
		},
		{
			// rust/azure_iot_operations_services/src/state_store/client.rs
			name: "Rust",
			response: func(id string) string {
				return "clients/" + id + "/services/" + invokeTopic +
					"/response"
			},
			notify: func(id string) string {
				return notify + fmt.Sprintf("%X", id) +
					"/command/notify/+"
			}, granted: 0xFF,
			expiry: 10, px: []string{"100000"},
		},
		{
			// go/services/statestore: never subscribes to notifications.
			name: "Go", response: goResponseOf, expiry: 10, px: []string{"100000"},
		},
	}
}

// send publishes a request as a library does. Its PUBACK must have the reason 0x00: .NET takes any
// other for an error.
func (l *library) send(p *peer, arguments ...string) {
	p.t.Helper()
	properties := append([]string{
		"__protVer", "1.0", "__ts", now(), "__srcId", p.id, "$partition", p.id, "$high_priority",
		"", "aio-persistence", "true",
	}, l.extra...)
	p.publish(request{
		payload: array(arguments...), properties: properties, topic: l.response(p.id),
		expiry: l.expiry, extra: func(m *paho.Publish) {
			format := byte(0)
			m.Properties.ContentType, m.Properties.PayloadFormat = "application/octet-stream",
				&format
		},
	})
}

func (l *library) call(p *peer, want string, arguments ...string) *paho.Publish {
	p.t.Helper()
	l.send(p, arguments...)
	m := p.receive()
	if string(m.Payload) != want || m.Topic != l.response(p.id) {
		p.t.Errorf("%s: %q on %s, want %q", strings.Join(arguments, " "), m.Payload, m.Topic, want)
	}
	return m
}

// suback subscribes and returns the reason code.
func (p *peer) suback(filter string) byte {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), wait)
	defer cancel()
	ack, err := p.client.Subscribe(ctx,
		&paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: 1}}})
	if ack == nil {
		p.t.Fatalf("%s: %v", filter, err)
	}
	return ack.Reasons[0]
}

// The store understands what each library sends, and sends what each needs, with the embedded
// broker and with Mosquitto in its production configuration.
func TestEachLibraryIsUnderstoodOnTheWire(t *testing.T) {
	g := startGuarded(t)
	s, _ := startGuardedServer(t, g)
	embedded := startEmbedded(t)
	for _, l := range libraries() {
		t.Run(l.name+"/mosquitto", func(t *testing.T) {
			p := g.login(t, "press-"+l.name, "press")
			l.drive(t, p)
		})
		t.Run(l.name+"/embedded", func(t *testing.T) {
			p, err := login(t, embedded.address,
				&paho.Connect{ClientID: "press-" + l.name, CleanStart: true, KeepAlive: 30})
			if err != nil {
				t.Fatal(err)
			}
			l.drive(t, p)
		})
	}
	// The plugin delivers notifications to clients that do not subscribe to them. The broker must
	// acknowledge these with 0x00: with 0x10 (no matching subscribers) the node would end the
	// watch.
	if metrics := s.metrics(t); !strings.Contains(metrics,
		`holdfast_notifications_total{result="no_subscriber"} 0`) {
		t.Error("the broker found no subscriber for a notification that was delivered")
	}
}

func (l *library) drive(t *testing.T, p *peer) {
	if reason := p.suback(l.response(p.id)); reason > 2 {
		t.Fatalf("responses: SUBACK 0x%02X", reason)
	}
	if l.notify != nil {
		if reason := p.suback(l.notify(p.id)); l.granted != 0xFF && reason != l.granted ||
			reason > 2 {
			t.Fatalf("notifications: SUBACK 0x%02X", reason)
		}
	}
	key := "own/" + p.id // the policy of startGuardedServer allows it
	set := l.call(p, "+OK\r\n", "SET", key, "one")
	if timestamp(set) == "" {
		t.Error("no version for an applied SET")
	}
	if not := l.call(p, ":-1\r\n", "SET", key, "two", "NX"); timestamp(not) != timestamp(set) {
		t.Error("not the stored version for a SET that is not applied") // .NET throws without one
	}
	for _, px := range l.px {
		l.call(p, "+OK\r\n", "SET", key, "one", "NEX", "PX", px)
	}
	// .NET in a culture with a decimal comma
	l.call(p, errSyntax, "SET", key, "one", "PX", "1500,5")
	l.call(p, "$3\r\none\r\n", "GET", key)
	l.call(p, fmt.Sprintf("*1\r\n*1\r\n$%d\r\n%s\r\n", len(key), key), "SCAN", key)
	if miss := l.call(p, "$-1\r\n", "GET", key+"/2"); timestamp(miss) != "" {
		t.Error("a version for a key that does not exist") // Go takes it for existence
	}
	l.call(p, "+OK\r\n", "KEYNOTIFY", key)

	// Each change comes once, before the reply to the request that made it, in the form that all
	// libraries parse.
	notified := func(want, reply string, arguments ...string) {
		t.Helper()
		l.send(p, arguments...)
		note, answer := p.receive(), p.receive()
		topic := strings.TrimSuffix(notificationsOf(p.id), "#") + fmt.Sprintf("%X", key)
		if note.Topic != topic || string(note.Payload) != want || timestamp(note) == "" ||
			note.Properties.ContentType != "application/octet-stream" || note.QoS != 1 {
			t.Errorf("%q on %s, %+v", note.Payload, note.Topic, note.Properties)
		}
		if note.Properties.MessageExpiry == nil || *note.Properties.MessageExpiry > 30 {
			t.Errorf("expiry of the notification: %v", note.Properties.MessageExpiry)
		}
		if string(answer.Payload) != reply {
			t.Errorf("%q, want %q", answer.Payload, reply)
		}
	}
	for i := range 20 { // also in quick succession
		value := fmt.Sprintf("v%02d", i)
		notified("*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\n"+value+"\r\n", "+OK\r\n",
			"SET", key, value)
	}
	notified("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n", ":1\r\n", "DEL", key)

	l.call(p, "+OK\r\n", "KEYNOTIFY", key, "STOP")
	l.call(p, ":0\r\n", "KEYNOTIFY", key, "STOP") // .NET throws; Rust and Go do not
	l.call(p, "+OK\r\n", "SET", key, "unheard")
	l.call(p, ":1\r\n", "DEL", key)
}

// A login with a wrong password, under the client id of a connected client, does not end the
// delivery of that client's notifications. From 2.0.13 on, Mosquitto reports such a login to
// plugins as a disconnect of that client id.
func TestRefusedLoginEndsNoDelivery(t *testing.T) {
	g := startGuarded(t)
	startGuardedServer(t, g)
	l := libraries()[2]
	p := g.login(t, "press-go", "press")
	p.suback(l.response(p.id))
	l.call(p, "+OK\r\n", "KEYNOTIFY", "own/press-go")
	for _, user := range []string{"press", "robot", "nobody"} {
		t.Run(user, func(t *testing.T) {
			if _, err := login(t, g.address,
				&paho.Connect{
					ClientID: "press-go", CleanStart: true, Username: user,
					UsernameFlag: true, Password: []byte("wrong"),
					PasswordFlag: true,
				}); err == nil {
				t.Fatalf("%s is let in with a wrong password", user)
			}
		})
	}
	l.send(p, "SET", "own/press-go", "v")
	if note := p.receive(); !strings.HasPrefix(string(note.Payload), "*4") {
		t.Errorf("%q came instead of the notification", note.Payload)
	}
}

// A client that never subscribes to notifications gets no reply before the notification of its
// change, also when the broker reads many packets of the node at once, as over TLS.
func TestNotificationsWithoutSubscriptionPrecedeReplies(t *testing.T) {
	g := startGuarded(t)
	startGuardedServer(t, g)
	l := libraries()[2]
	p := g.login(t, "press-go", "press")
	p.suback(l.response(p.id))
	const key, changes = "own/press-go", 500
	l.call(p, "+OK\r\n", "KEYNOTIFY", key)
	go func() {
		for i := range changes {
			l.send(p, "SET", key, fmt.Sprintf("%04d", i))
		}
	}()
	var got []string
	for range 2 * changes {
		m := p.receive()
		if strings.HasPrefix(string(m.Payload), "*4") {
			got = append(got, "n")
		} else {
			got = append(got, "r")
		}
	}
	ahead := 0
	for i, kind := range got {
		if kind == "n" {
			ahead++
		} else if ahead--; ahead < 0 {
			t.Fatalf("a reply came before its notification, at %d", i)
		}
	}
}

// Requests that wait in the cluster's session at the broker survive a restart of the broker, and
// the will of another client. That will is not executed.
func TestQueuedRequestsSurviveWillsAndRestarts(t *testing.T) {
	folder := t.TempDir()
	g := startGuarded(t, "persistence true", "persistence_location "+folder+"/")
	s, _ := startGuardedServer(t, g)
	p := g.connect(t, "press-1", "press")
	p.call(request{payload: array("GET", "own/press-1")})
	s.kill()
	for i := range 3 {
		p.publish(request{
			payload:    array("SET", fmt.Sprintf("own/press-1/%d", i), "queued"),
			properties: []string{"__ts", now()},
		})
	}
	g.publishWill(t, array("SET", "own/press-1", "forged"))
	if code, _ := g.stop(); code > 0 {
		t.Fatalf("the broker: code %d", code)
	}
	g.start(t)
	s.start(t)
	s.waitReady(t)
	p = g.login(t, "press-1", "press")
	// the replies to the queued requests come on the earlier topic
	p.topic = "clients/press-1/later"
	p.subscribe(p.topic)
	for i := range 3 {
		if reply := p.call(request{payload: array("GET",
			fmt.Sprintf("own/press-1/%d", i))}); string(reply.Payload) != "$6\r\nqueued\r\n" {
			t.Errorf("request %d: %q", i, reply.Payload)
		}
	}
	if reply := p.call(request{payload: array("GET", "own/press-1")}); string(
		reply.Payload) != "$-1\r\n" {
		t.Errorf("the will: %q", reply.Payload)
	}
}

// A client that does not read what the broker sends costs the broker at most three times the bytes
// that the shipped configuration allows. Other clients are answered meanwhile.
func TestDeafClientIsBounded(t *testing.T) {
	const allowed = (64 + 32) << 20 // max_queued_bytes and max_inflight_bytes
	g := startGuarded(t)
	s, _ := startGuardedServer(t, g)
	other := g.connect(t, "press-2", "press")
	if reply := other.call(request{
		payload:    array("SET", "user/press", strings.Repeat("x", 1<<20)),
		properties: []string{"__ts", now()},
	}); string(reply.Payload) != "+OK\r\n" {
		t.Fatalf("%q", reply.Payload)
	}
	before := g.rss(t)
	deaf, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = deaf.Close() }()
	write := func(content packets.Packet) {
		t.Helper()
		if _, err := content.WriteTo(deaf); err != nil {
			t.Fatal(err)
		}
	}
	const topic = "clients/press-1/r"
	receive, format := uint16(65535), byte(0)
	write(&packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: "press-1", CleanStart: true,
		KeepAlive: 600, Username: "press", UsernameFlag: true,
		Password: []byte(password), PasswordFlag: true,
		Properties: &packets.Properties{ReceiveMaximum: &receive},
	})
	write(&packets.Subscribe{
		PacketID: 1, Properties: &packets.Properties{},
		Subscriptions: []packets.SubOptions{{Topic: topic, QoS: 1}},
	})
	const gets = 500
	for i := range gets {
		write(&packets.Publish{
			Topic: invokeTopic, QoS: 1, PacketID: uint16(i + 2),
			Payload: []byte(array("GET", "user/press")), Properties: &packets.Properties{
				ResponseTopic: topic, CorrelationData: fmt.Appendf(nil, "deaf%012d", i),
				PayloadFormat: &format,
			},
		})
	}
	published := regexp.MustCompile(`holdfast_request_seconds_count\{stage="publish"\} (\d+)`)
	testwait.Until(t, "all are answered", func() bool {
		found := published.FindStringSubmatch(s.metrics(t))
		count := 0
		if found != nil {
			count, _ = strconv.Atoi(found[1]) // always a number
		}
		return count > gets
	})
	if reply := other.call(request{payload: array("GET", "user/press")}); len(
		reply.Payload) < 1<<20 {
		t.Fatalf("%.40q", reply.Payload)
	}
	if grown := g.rss(t) - before; grown > 3*allowed {
		t.Errorf("the broker has grown by %d MiB for %d GETs of 1 MiB, want at most %d", grown>>20,
			gets, 3*allowed>>20)
	} else {
		t.Logf("the broker has grown by %d MiB for %d GETs of 1 MiB", grown>>20, gets)
	}
}

// TestProtocolsGoLibraryWorks runs the tests of test/sdk, which use the protocol's own Go library,
// behind Mosquitto with the plugin: with all topics allowed, in the production configuration, and
// in that while the leader is killed every ten seconds. `make test-sdk` runs it.
func TestProtocolsGoLibraryWorks(t *testing.T) {
	if os.Getenv("HOLDFAST_LIBRARIES") == "" {
		t.Skip("make test-sdk runs it")
	}
	suite := filepath.Join(t.TempDir(), "sdk.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", suite, ".")
	build.Dir = filepath.Join("..", "sdk")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	run := func(t *testing.T, times string, environment ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), suite, "-test.v", "-test.timeout", "10m",
			"-test.count", times)
		command.Dir = build.Dir
		command.Env = append(os.Environ(), environment...)
		output, err := command.CombinedOutput()
		passed := strings.Count("\n"+string(output), "\n--- PASS: ")
		t.Logf("%d tests of the suite passed, %d failed", passed,
			strings.Count("\n"+string(output), "\n--- FAIL: "))
		if err != nil || passed == 0 {
			t.Errorf("%v:\n%s\n%s", err, failures(string(output)), tail(string(output), 2000))
		}
	}
	production := func(g *securedMosquitto) []string {
		return []string{
			"HOLDFAST_BROKER=mqtts://" + g.secure, "HOLDFAST_CA=" + g.authorities.File("ca.crt"),
			"HOLDFAST_USERNAME=press", "HOLDFAST_PASSWORD=" + password,
			"HOLDFAST_CLIENT_PREFIX=press-",
		}
	}
	t.Run("open", func(t *testing.T) {
		g := startOpen(t)
		startMembersBehind(t, g)
		run(t, "1", "HOLDFAST_BROKER="+g.address)
	})
	t.Run("production", func(t *testing.T) {
		g := startGuarded(t)
		startMembersBehind(t, g)
		run(t, "1", production(g)...)
	})
	t.Run("production, leader killed every 10 s", func(t *testing.T) {
		g := startGuarded(t)
		m := startMembersBehind(t, g)
		ctx, stop := context.WithCancel(t.Context())
		killed := make(chan int, 1)
		go func() {
			defer close(killed) // also when no leader is found, which ends the goroutine
			killed <- killLeaders(ctx, t, m, 10*time.Second)
		}()
		run(t, "5", append(production(g), "HOLDFAST_TIMEOUT=3m", "HOLDFAST_REPEATS=1")...)
		stop()
		count := <-killed
		t.Logf("the leader was killed %d times", count)
		if count == 0 {
			t.Error("the suite was over before the leader was killed")
		}
	})
}

// failures returns the messages of failed tests from the output of go test.
func failures(output string) string {
	var lines []string
	name := ""
	for line := range strings.Lines(output) {
		if _, test, ok := strings.Cut(line, "=== CONT  "); ok {
			name = strings.TrimSpace(test)
		}
		if strings.Contains(line, "--- FAIL") || strings.Contains(line, "_test.go:") &&
			!strings.Contains(line, "wire_test.go") {
			lines = append(lines, name+": "+strings.TrimRight(line, "\n"))
		}
	}
	return tail(strings.Join(lines, "\n"), 8000)
}

// killLeaders kills the leader again and again, and starts it again, until the context ends. It
// returns how often.
func killLeaders(ctx context.Context, t *testing.T, m members, interval time.Duration) (count int) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return count
		case <-ticker.C:
		}
		leader := m.leader(t)
		leader.kill()
		leader.start(t)
		count++
	}
}
