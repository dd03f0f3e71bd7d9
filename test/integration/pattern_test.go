package integration

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testwait"
	"holdfast/internal/topics"
	"holdfast/resp"
)

// A watch of a pattern gives the same notifications as watches of the keys that match: on the topic
// of the changed key, one for each change, and before the reply.
func TestPatternWatchNotifiesByteForByte(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		p := connect(t, target, "patterns", true)
		ts := []string{"__ts", now()}
		set := func(key, value string) string {
			p.publish(request{payload: array("SET", key, value), properties: ts})
			n := p.receive()
			if n.Topic == topics.Notifications+"7061747465726E73/command/notify/"+
				strings.ToUpper(hex.EncodeToString([]byte(key))) {
				checkNotification(t, key, n)
				payload := string(n.Payload)
				must(t, p.receive(), "+OK\r\n")
				return payload
			}
			must(t, n, "+OK\r\n")
			return ""
		}
		for _, pattern := range []string{"line/*/t[1-3]", "line/*", "?ine/1/t2"} {
			must(t, p.call(request{payload: array("KEYNOTIFY", pattern, "GLOB")}), "+OK\r\n")
		}
		must(t, p.call(request{payload: array("KEYNOTIFY", "line/1/t2")}), "+OK\r\n")
		for key, want := range map[string]string{
			// one notification, although four watches match the key
			"line/1/t2":    "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n",
			"line/é":       "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n",
			"line/\xff":    "", // no pattern matches what is not UTF-8
			"elsewhere/t2": "",
		} {
			if got := set(key, "v"); got != want {
				t.Errorf("SET %q: %q, want %q", key, got, want)
			}
		}
		p.publish(request{payload: array("SET", "line/1/t2", "v", "PX", "100"), properties: ts})
		must(t, p.receive(), "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n")
		must(t, p.receive(), "+OK\r\n")
		must(t, p.receive(), "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n") // it has expired
		set("line/1/t2", "v")
		for _, remove := range []string{array("VDEL", "line/1/t2", "v"), array("DEL", "line/é")} {
			p.publish(request{payload: remove})
			must(t, p.receive(), "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n")
			must(t, p.receive(), ":1\r\n")
		}
		sdkWatcher := connect(t, target, "sdk", true)
		must(t, sdkWatcher.call(request{
			payload:    array("KEYNOTIFY", "line/*", "GLOB"),
			properties: sdk(),
		}), "+OK\r\n")
		set("line/é", "v")
		sdkWatcher.receive() // of the SET
		p.publish(request{payload: array("DEL", "line/é")})
		must(t, p.receive(), "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n")
		must(t, p.receive(), ":1\r\n")
		must(t, sdkWatcher.receive(), "*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n")
		must(t, p.call(request{payload: array("KEYNOTIFY", "line/*", "GLOB", "STOP")}), "+OK\r\n")
		if got := set("line/é", "v"); got != "" {
			t.Errorf("after STOP: %q", got)
		}
	})
}

// A watch of a pattern survives a leader change and kill -9 of all nodes. Operators can list it and
// end it.
func TestPatternWatchSurvivesLeadersAndRestarts(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address)
	p := connect(t, &target{address: broker.address}, "me", true)
	must(t, p.call(request{payload: array("KEYNOTIFY", "line/*", "GLOB")}), "+OK\r\n")
	number := 0
	change := func() {
		t.Helper()
		testwait.Until(t, "a change is notified", func() bool {
			number++
			value := fmt.Sprint(number)
			if _, code := holdfast(t, broker.address, "", "set", "line/1", value, "--timeout",
				"2s"); code != 0 {
				return false
			}
			for n := p.receive(); ; n = p.receive() { // earlier attempts may be notified, too
				if string(n.Payload) == string(resp.AppendArray(nil, "NOTIFY", "SET", "VALUE",
					value)) {
					return true
				}
			}
		})
	}
	change()
	for _, s := range m {
		s.kill()
	}
	for _, s := range m {
		s.start(t)
	}
	change()
	m.leader(t).stop()
	change()
	list, code := m.leader(t).operate(t, "watches", "list", "--client", "me")
	if code != 0 || !strings.Contains(list, "pattern") || !strings.Contains(list, "line/*") {
		t.Errorf("code %d: %s", code, list)
	}
	for _, drop := range []struct{ flag, want string }{
		{"--key", "0 watches ended"},
		{"--pattern", "1 watches ended"},
	} {
		if out, code := m.leader(t).operate(t, "watches", "drop", drop.flag, "line/*",
			"--yes"); code != 0 || !strings.Contains(out, drop.want) {
			t.Errorf("drop %s: code %d, %s", drop.flag, code, out)
		}
	}
	must(t, p.call(request{payload: array("KEYNOTIFY", "line/*", "GLOB", "STOP")}), ":0\r\n")
}

// A watch of a pattern notifies a client only of keys that it may read, also if the client claims
// another id in __srcId.
func TestPatternWatchShowsOnlyKeysThatTheClientMayRead(t *testing.T) {
	g := startGuarded(t)
	startGuardedServer(t, g)
	press, robot := g.connect(t, "press-1", "press"), g.connect(t, "robot-1", "robot")
	for name, p := range map[string]*peer{"press-1": press, "robot-1": robot} {
		p.subscribe(notificationsOf(name))
	}
	must(t, press.call(request{payload: array("KEYNOTIFY", "own/*", "GLOB")}), "+OK\r\n")
	for _, claimed := range []string{"robot-1", "press-1"} {
		must(t, robot.call(request{
			payload:    array("KEYNOTIFY", "own/"+claimed[:1]+"*", "GLOB"),
			properties: []string{"__srcId", claimed},
		}), "+OK\r\n")
	}
	for key, writer := range map[string]*peer{"own/press-1": press, "own/robot-1": robot} {
		writer.publish(request{
			payload:    array("SET", key, "v"),
			properties: []string{"__ts", now()},
		})
		if n := writer.receive(); !strings.HasSuffix(n.Topic,
			strings.ToUpper(hex.EncodeToString([]byte(key)))) {
			t.Errorf("SET %s: %q on %s came first", key, n.Payload, n.Topic)
		}
		must(t, writer.receive(), "+OK\r\n")
	}
	for _, p := range []*peer{press, robot} {
		// a notification of the other client's key would come before the reply
		must(t, p.call(request{payload: array("KEYNOTIFY", "none", "GLOB", "STOP")}), ":0\r\n")
	}
}
