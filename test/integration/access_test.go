package integration

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

// A client cannot pass for another one by anything that it sends: user properties, a response topic
// or a will. It neither reads nor changes the other client's keys and watches.
func TestAttacksOnIdentityAreStopped(t *testing.T) {
	g := startGuarded(t)
	s, audit := startGuardedServer(t, g)
	victim, attacker := g.connect(t, "press-1", "press"), g.connect(t, "robot-1", "robot")
	victim.subscribe(notificationsOf("press-1"))
	if reply := victim.call(request{
		payload:    array("SET", "own/press-1", "mine"),
		properties: []string{"__ts", now()},
	}); string(reply.Payload) != "+OK\r\n" {
		t.Fatalf("the victim's own key: %q", reply.Payload)
	}
	if reply := victim.call(request{
		payload:    array("SET", "user/press", "mine"),
		properties: []string{"__ts", now()},
	}); string(reply.Payload) != "+OK\r\n" {
		t.Fatalf("the victim's user's key: %q", reply.Payload)
	}
	if reply := victim.call(request{payload: array("KEYNOTIFY", "own/press-1")}); string(
		reply.Payload) != "+OK\r\n" {
		t.Fatalf("watch: %q", reply.Payload)
	}

	const stampedID, stampedUser = "$holdfast-client-id", "$holdfast-username"
	forgeries := map[string][]string{
		"forged __srcId":   {"__srcId", "press-1"},
		"forged property":  {stampedID, "press-1"},
		"doubled property": {stampedID, "press-1", stampedID, "press-1"},
		"property and __srcId": {
			stampedID, "press-1", "__srcId", "press-1", stampedUser,
			"press",
		},
		"forged user name":         {stampedUser, "press"},
		"empty property":           {stampedID, "", "__srcId", "press-1"},
		"property in another case": {"$Holdfast-Client-Id", "press-1", "__srcId", "press-1"},
		"many properties": append(repeated(stampedID, "press-1", 60), "__srcId",
			"press-1"),
		"property behind the others": {"__srcId", "press-1", "a", "b", stampedID, "press-1"},
	}
	tried := 0
	for name, properties := range forgeries {
		t.Run(name, func(t *testing.T) {
			for _, command := range []string{
				array("SET", "own/press-1", "stolen"), array("GET", "own/press-1"),
				array("DEL", "own/press-1"), array("VDEL", "own/press-1", "mine"),
				array("KEYNOTIFY", "own/press-1"), array("KEYNOTIFY", "own/press-1", "STOP"),
				array("SET", "own/press-1", "stolen", "NEX", "PX", "10000"),
				array("GET", "user/press"),
			} {
				tried++
				reply := attacker.call(request{
					payload:    command,
					properties: append([]string{"__ts", now(), "__ft", now()}, properties...),
				})
				if !bytes.Contains(reply.Payload, []byte("not authorized")) {
					t.Errorf("%q is answered %q", command, reply.Payload)
				}
			}
		})
	}
	if reply := victim.call(request{payload: array("GET", "own/press-1")}); string(
		reply.Payload) != "$4\r\nmine\r\n" {
		t.Errorf("the victim's key: %q", reply.Payload)
	}

	// The plugin denies a packet with very many user properties, without stalling the broker. An
	// earlier version of the plugin copied them for 35 s.
	tried++
	began := time.Now()
	attacker.publish(request{
		payload:    array("GET", "own/robot-1"),
		properties: repeated("k", "", 100_000),
	})
	if reply := victim.call(request{payload: array("GET", "own/press-1")}); string(
		reply.Payload) != "$4\r\nmine\r\n" {
		t.Errorf("the victim's key: %q", reply.Payload)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("100,000 user properties took the broker %v", took)
	}

	// A request whose response topic is invalid, or belongs to another client or a node, is not
	// answered. Its publisher is disconnected.
	for _, topic := range []string{
		victim.topic, "clients/press-1/anything", "clients/press-1",
		goResponseOf("press-1"),
		"clients/robot-2/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response", strings.Repeat("l/", 200) + "l", "holdfast/holdfast/n1/probe", notificationsOf("press-1")[:60],
	} {
		t.Run(fmt.Sprintf("%.60s", topic), func(t *testing.T) {
			tried++
			offender := g.connect(t, "robot-2", "robot")
			offender.publish(request{
				payload: array("SET", "own/robot-2", "injected"), topic: topic,
				properties: []string{"__ts", now()},
			})
			if reason := offender.end(); reason != 0x98 {
				t.Errorf("response topic %s: ended with 0x%02X", topic, reason)
			}
		})
	}
	// the broker disconnects all clients of the user robot, together with robot-2
	attacker = g.connect(t, "robot-1", "robot")

	// A will on the request topic is not executed.
	for _, command := range []string{
		array("SET", "own/press-1", "stolen"),
		array("GET", "own/press-1"), array("KEYNOTIFY", "own/press-1", "STOP"),
	} {
		tried++
		g.publishWill(t, command)
	}

	if reply := attacker.call(request{payload: array("GET", "own/robot-1")}); string(
		reply.Payload) != "$-1\r\n" {
		t.Errorf("the attacker gets %q on %s", reply.Payload, reply.Topic)
	}
	if reply := victim.call(request{payload: array("GET", "own/press-1")}); string(
		reply.Payload) != "$4\r\nmine\r\n" {
		t.Errorf("the victim's key: %q", reply.Payload)
	}

	// The watch is still there, and the victim's alone.
	victim.publish(request{
		payload:    array("SET", "own/press-1", "changed"),
		properties: []string{"__ts", now()},
	})
	if note, reply := victim.receive(),
		victim.receive(); !bytes.Contains(reply.Payload, []byte("OK")) ||
		!bytes.Contains(note.Payload, []byte("NOTIFY")) {
		t.Errorf("%q, %q", reply.Payload, note.Payload)
	}
	t.Logf("%d attacks by what a request says, all stopped", tried)

	// The audit log says who did what, and which rule of the policy allowed it.
	s.stop()
	for file, want := range map[string]string{
		audit:             `"command":"SET","clientId":"press-1","username":"press","key":"own/press-1","outcome":"done","rule":1,"version":"`,
		audit + ".denied": `"command":"DEL","clientId":"robot-1","username":"robot","key":"own/press-1","outcome":"not authorized"}`,
	} {
		lines, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(lines), want) {
			t.Errorf("%s lacks %s:\n%s", file, want, tail(string(lines), 2000))
		}
	}
}

func repeated(key, value string, count int) (properties []string) {
	for range count {
		properties = append(properties, key, value)
	}
	return properties
}

// A client cannot subscribe to, or publish on, topics of nodes and of other clients, nor connect
// under their client ids. The plugin and the access control list deny it.
func TestAttacksOnTopicsAreStopped(t *testing.T) {
	g := startGuarded(t)
	startGuardedServer(t, g)
	victim, attacker := g.connect(t, "press-1", "press"), g.connect(t, "robot-1", "robot")
	victim.subscribe(notificationsOf("press-1"))
	tried := 0
	for _, filter := range []string{
		notificationsOf("press-1"), "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/#",
		"clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/+/command/notify/#",
		"clients/press-1/#", victim.topic, invokeTopic,
		"$share/group/" + invokeTopic, "$share/group/" + notificationsOf("press-1"), "holdfast/#",
		"$SYS/broker/log/N", "$CONTROL/dynamic-security/v1/response",
		"#", "+/#", "clients/#", "clients/+/services/#", "statestore/#",
		"clients/+/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response",
	} {
		tried++
		// some may be granted; below it is checked that nothing of the victim's comes
		_ = attacker.trySubscribe(filter)
	}
	for _, filter := range []string{
		"#", "+/#", "clients/#", "+/+/+/+/+/+/+/+", "statestore/#",
		"$share/group/#", "+/+/+/+/+",
	} {
		t.Run(filter, func(t *testing.T) {
			tried++
			if err := attacker.trySubscribe(filter); err == nil {
				// the broker would count the attacker as a subscriber of every notification
				t.Errorf("%s is granted", filter)
			}
		})
	}
	for topic, payload := range map[string]string{
		strings.TrimSuffix(notificationsOf("press-1"), "#") + "6B": "forged",
		victim.topic: "forged", goResponseOf("press-1"): "forged",
		goResponseOf("robot-2"): "forged", "holdfast/holdfast/node/probe": "1 2 3",
		"holdfast/holdfast/node/presence": "1 2",
		"$CONTROL/dynamic-security/v1":    `{"commands":[{"command":"disableClient","username":"press"}]}`,
	} {
		t.Run(fmt.Sprintf("%.60s", topic), func(t *testing.T) {
			tried++
			response, err := g.connect(t, "robot-2", "robot").client.Publish(t.Context(),
				&paho.Publish{Topic: topic, QoS: 1, Payload: []byte(payload)})
			if err == nil && (response == nil || response.ReasonCode < 0x80) {
				t.Errorf("published on %s", topic)
			}
		})
	}
	for _, key := range []string{"own/press-1", "own/press-1/2"} {
		t.Run(key, func(t *testing.T) {
			victim.call(request{payload: array("KEYNOTIFY", key)})
			victim.publish(request{
				payload:    array("SET", key, "mine"),
				properties: []string{"__ts", now()},
			})
			if note, reply := victim.receive(),
				victim.receive(); !bytes.Contains(reply.Payload, []byte("OK")) ||
				!bytes.Contains(note.Payload, []byte("NOTIFY")) {
				t.Errorf("%q, %q", reply.Payload, note.Payload)
			}
		})
	}
	victim.call(request{payload: array("GET", "own/press-1")})
	// A message of the victim's would have come to the attacker before this reply.
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
		"holdfast-out-0", "holdfast-n1-in", "holdfast-n1-in-01234567", "holdfast-ingest",
		"holdfast-n1-presence",
		// the client ids of a user are its name, or begin with its name and a hyphen
		"press-1", "press-1/services", "robot-1/services", "press", "robotics",
	} {
		t.Run(id, func(t *testing.T) {
			tried++
			if _, err := login(t, g.address,
				&paho.Connect{
					ClientID: id, Username: "robot", UsernameFlag: true,
					Password: []byte(password), PasswordFlag: true,
				}); err == nil {
				t.Errorf("connected as %s", id)
			}
		})
	}
	t.Logf("%d attacks on topics and client ids, all stopped", tried)
}

// The publisher of a request with an invalid response topic is disconnected, and may connect again.
// If it names another client in its user properties, that client stays connected.
func TestPublisherWithInvalidResponseTopicIsKickedOnMosquitto(t *testing.T) {
	g := startGuarded(t)
	startGuardedServer(t, g)
	bystander, offender := g.connect(t, "press-1", "press"), g.connect(t, "robot-1", "robot")
	// the reply shows that the node leads
	bystander.call(request{payload: array("GET", "own/press-1")})
	offender.publish(request{
		payload: array("GET", "k"), topic: invokeTopic,
		properties: []string{
			"__srcId", "press-1", "$holdfast-client-id", "press-1",
			"$holdfast-username", "press",
		},
	})
	if reason := offender.end(); reason != 0x98 {
		t.Errorf("disconnected with reason 0x%02X, want 0x98 (administrative action)", reason)
	}
	if reply := bystander.call(request{payload: array("GET", "own/press-1")}); string(
		reply.Payload) != "$-1\r\n" {
		t.Errorf("the bystander: %q", reply.Payload)
	}
	if reply := g.connect(t, "robot-1",
		"robot").call(request{payload: array("GET", "own/robot-1")}); string(
		reply.Payload) != "$-1\r\n" {
		t.Errorf("the offender, back again: %q", reply.Payload)
	}
	if users, err := os.ReadFile(g.users); err != nil ||
		bytes.Contains(users, []byte(`"disabled"`)) {
		t.Errorf("%v: a user was left disabled: %s", err, users)
	}
}
