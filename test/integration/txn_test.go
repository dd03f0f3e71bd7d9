package integration

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/testwait"
)

// Watchers are notified of each change of a transaction in the order of its commands, before the
// reply, and of nothing if it is not applied.
func TestTransactionNotifiesByteForByte(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		p := connect(t, target, "transactor", true)
		ts := []string{"__ts", now()}
		for _, key := range []string{"t/1", "t/2", "t/3"} {
			must(t, p.call(request{payload: array("KEYNOTIFY", key)}), "+OK\r\n")
		}
		change := array("TXN", array("SET", "t/2", "v"), array("DEL", "t/3"),
			array("SET", "t/1", "w"))
		p.publish(request{payload: change, properties: ts})
		for _, want := range []struct{ key, payload string }{
			{"t/2", "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n"},
			{"t/1", "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nw\r\n"},
		} {
			n := p.receive()
			must(t, n, want.payload)
			if !strings.HasSuffix(n.Topic, "/"+
				strings.ToUpper(hex.EncodeToString([]byte(want.key)))) {
				t.Errorf("the change of %s came on %s", want.key, n.Topic)
			}
		}
		must(t, p.receive(), "*3\r\n+OK\r\n:0\r\n+OK\r\n")
		must(t, p.call(request{payload: array("TXN", array("SET", "t/3", "v"),
			array("SET", "t/1", "x", "NX")), properties: ts}), "-1\r\n")
		p.publish(request{
			payload:    array("TXN", array("VDEL", "t/1", "w"), array("DEL", "t/2")),
			properties: ts,
		})
		must(t, p.receive(), "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n")
		must(t, p.receive(), "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n")
		must(t, p.receive(), "*2\r\n:1\r\n:1\r\n")
	})
}

// The store answers a copy of a transaction as it answered the first, read values included, after a
// leader change and after kill -9 of all nodes.
func TestCopyOfATransactionSurvivesLeadersAndRestarts(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address)
	p := connect(t, &target{address: broker.address}, "me", false)
	ts := []string{"__ts", now()}
	must(t, p.call(request{payload: array("SET", "read", "before"), properties: ts}), "+OK\r\n")
	transaction := request{payload: array("TXN", array("GET", "read"),
		array("SET", "written", "1", "NX")), properties: ts, correlation: "0123456789abcdef"}
	const want = "*2\r\n$6\r\nbefore\r\n+OK\r\n"
	must(t, p.call(transaction), want)
	must(t, p.call(request{payload: array("SET", "read", "after"), properties: ts}), "+OK\r\n")
	for _, disturb := range []func(){
		func() { m.leader(t).stop() },
		func() {
			for _, s := range m {
				s.kill()
			}
			for _, s := range m {
				s.start(t)
			}
		},
	} {
		disturb()
		testwait.Until(t, "a leader serves", func() bool {
			_, code := holdfast(t, broker.address, "", "get", "read", "--timeout", "2s")
			return code == 0
		})
		must(t, p.call(transaction), want)
	}
}

// A transaction whose reply would be too large for the broker is refused before it changes
// anything.
func TestReplyOfATransactionFitsIntoTheBrokersPackets(t *testing.T) {
	broker := startMosquitto(t, "max_packet_size 4000")
	newServer(t, "mqtt://"+broker.address, t.TempDir()).waitReady(t)
	p := connect(t, &target{address: broker.address}, "me", false)
	ts := []string{"__ts", now()}
	for _, key := range []string{"a", "b"} {
		must(t, p.call(request{
			payload:    array("SET", key, strings.Repeat("x", 3000)),
			properties: ts,
		}), "+OK\r\n")
	}
	must(t, p.call(request{
		payload:    array("TXN", array("GET", "a"), array("SET", "c", "1")),
		properties: ts,
	}), "*2\r\n$3000\r\n"+strings.Repeat("x", 3000)+"\r\n+OK\r\n")
	must(t, p.call(request{payload: array("TXN", array("GET", "a"), array("GET", "b"),
		array("SET", "c", "2")), properties: ts}),
		"-ERR the reply is larger than the broker accepts\r\n")
	must(t, p.call(request{payload: array("GET", "c")}), "$1\r\n1\r\n")
}

// A transaction that waits for a leader is checked against the broker's packet size as well. It is
// executed when the leadership begins.
func TestReplyOfAWaitingTransactionFitsIntoTheBrokersPackets(t *testing.T) {
	broker := startMosquitto(t, "max_packet_size 4000")
	s := newServer(t, "mqtt://"+broker.address, t.TempDir())
	s.waitReady(t)
	p := connect(t, &target{address: broker.address}, "me", false)
	ts := []string{"__ts", now()}
	for _, key := range []string{"a", "b", "c"} {
		must(t, p.call(request{
			payload:    array("SET", key, strings.Repeat("x", 3000)),
			properties: ts,
		}), "+OK\r\n")
	}
	s.kill()
	p.publish(request{payload: array("TXN", array("GET", "a"), array("GET", "b"),
		array("SET", "c", "2")), properties: ts})
	s.start(t)
	must(t, p.receive(), "-ERR the reply is larger than the broker accepts\r\n")
	must(t, p.call(request{payload: array("GET", "c")}), "$3000\r\n"+strings.Repeat("x", 3000)+
		"\r\n")
}

// Each operation needs the right of its own command. The audit log has a line for each change, and
// for the operation that was denied.
func TestTransactionNeedsTheRightsOfItsOperations(t *testing.T) {
	g := startGuarded(t)
	s, audit := startGuardedServer(t, g)
	press := g.connect(t, "press-1", "press")
	ts := []string{"__ts", now()}
	must(t, press.call(request{payload: array("TXN", array("SET", "own/press-1/a", "1"),
		array("SET", "own/press-1/b", "1"), array("GET", "public/x")), properties: ts}),
		"*3\r\n+OK\r\n+OK\r\n$-1\r\n")
	for name, operation := range map[string]string{
		"a write": array("SET", "public/x", "1"),
		"a read":  array("GET", "own/robot-1"),
	} {
		for _, claimed := range []string{"press-1", "robot-1"} {
			t.Run(name+", as "+claimed, func(t *testing.T) {
				reply := press.call(
					request{
						payload:    array("TXN", array("SET", "own/press-1/a", "2"), operation),
						properties: append([]string{"__srcId", claimed}, ts...),
					})
				if string(reply.Payload) != errDenied {
					t.Errorf("%s, as %s: %q", name, claimed, reply.Payload)
				}
			})
		}
	}
	must(t, press.call(request{payload: array("GET", "own/press-1/a")}), "$1\r\n1\r\n")
	if code, _ := s.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for file, want := range map[string]string{
		audit:             `"operation":2,"member":"`,
		audit + ".denied": `"key":"public/x","outcome":"not authorized"`,
	} {
		lines, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(lines), want) {
			t.Errorf("%v: %s", err, lines)
		}
	}
}

// holdfast txn reads its text form from a file or the standard input, and says what each command
// did.
func TestTxnCommandSaysWhatEachCommandDid(t *testing.T) {
	target := startEmbedded(t)
	recipe := filepath.Join(t.TempDir(), "recipe.json")
	if err := os.WriteFile(recipe, []byte("{\"speed\": 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	change := fmt.Sprintf("# a change of the recipe\nset line/recipe @%s --nx\n\nset 'line/a key' \"two\\nlines\" --px 1h # it goes away\nget line/none\ndel line/draft\nset line/at @@home\n", recipe)
	out, code := holdfast(t, target.address, change, "txn", "--fence", "1000:0:StateStore")
	lines := strings.Split(out, "\n")
	if want := "set line/recipe ok\nset line/a key ok\nget line/none not found\ndel line/draft not found\nset line/at ok"; code != 0 || len(lines) < 2 || strings.Join(lines[:len(lines)-2], "\n") != want {
		t.Errorf("code %d: %s", code, out)
	}
	if out, code := holdfast(t, target.address, change, "txn", "--fence",
		"1000:0:StateStore"); code != 1 || out != "" {
		t.Errorf("a condition that is not met: code %d, %q", code, out)
	}
	file := filepath.Join(t.TempDir(), "change")
	if err := os.WriteFile(file, []byte("get line/at\nget 'line/a key'\nvdel line/recipe other"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := holdfast(t, target.address, "", "txn", file, "-o", "json", "--fence",
		"1000:0:StateStore"); code != 1 ||
		!strings.HasPrefix(out, `{"result":"not_applied","version":"`) {
		t.Errorf("not applied: code %d, %s", code, out)
	}
	if err := os.WriteFile(file, []byte("get line/at\nget 'line/a key'\ndel line/recipe"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := holdfast(t, target.address, "", "txn", file, "-o", "json", "--fence",
		"1000:0:StateStore"); code != 0 ||
		out != `{"result":"ok","operations":[{"key":"line/at","result":"ok","value":"@home"},{"key":"line/a key","result":"ok","value":"two\nlines"},{"key":"line/recipe","result":"ok"}]}`+"\n" {
		t.Errorf("code %d, %s", code, out)
	}
	for name, test := range map[string]struct {
		text string
		code int
	}{
		"nothing":             {"# only a comment\n", 2},
		"another command":     {"set a 1\nexpire a 1", 2},
		"no value":            {"set a", 2},
		"an open quote":       {"set a 'x", 2},
		"a bad escape":        {`set a "\z"`, 2},
		"a key twice":         {"set a 1\nget a", 2},
		"a flag of another":   {"del a --nx", 2},
		"an empty version":    {"set a 1 --if-version ''", 2},
		"two conditions":      {"set a 1 --nx --nex", 2},
		"no such file":        {"set a @/nowhere", 2},
		"refused":             {"set line/at 1", 3},
		"read twice":          {"get a\nget a", 0},
		"a value like a flag": {"set b -- --nx", 0},
		"no help":             {"set c 1\nset d 2 --help", 2},
		"a byte order mark":   {"\ufeffget a", 0},
		"128 commands":        {strings.Repeat("get a\n", 128), 0},
		"129 commands":        {strings.Repeat("get a\n", 129), 2},
	} {
		t.Run(name, func(t *testing.T) {
			if out, code := holdfast(t, target.address, test.text, "txn"); code != test.code {
				t.Errorf("code %d, want %d: %s", code, test.code, out)
			}
		})
	}
	if out, code := holdfast(t, target.address, "", "get", "b"); code != 0 || out != "--nx" {
		t.Errorf("code %d, %q", code, out)
	}
	if out, code := holdfast(t, target.address, "get line/at\nget 'line/a key'",
		"txn"); code != 0 || out != "get line/at: @home\nget line/a key: \"two\\nlines\"\n" {
		t.Errorf("code %d, %q", code, out)
	}
}
