package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/testwait"
	"holdfast/internal/topics"
)

// Each kind of change is notified byte for byte as docs/protocol.md says (Watching), and before the
// reply to the change.
func TestNotificationsOfEveryKindOfChange(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		p := connect(t, target, "me", true)
		topic := topics.Notifications + "6D65/command/notify/6B00FF"
		key := "k\x00\xff"
		must(t, p.call(request{payload: array("KEYNOTIFY", key)}), "+OK\r\n")

		// step sends a request. The writer watches the key itself: if the request changes it, the
		// notification comes before the reply.
		step := func(name string, r request, reply, notification string, versionOfReply bool) {
			t.Helper()
			correlation := p.publish(r)
			if notification != "" {
				n := p.receive()
				if n.Topic != topic || string(n.Payload) != notification {
					t.Fatalf("%s: %q on %s", name, n.Payload, n.Topic)
				}
				checkNotification(t, name, n)
				m := p.receive()
				must(t, m, reply)
				if versionOfReply && timestamp(m) != timestamp(n) {
					t.Errorf("%s: versions %s and %s", name, timestamp(m), timestamp(n))
				}
				return
			}
			m := p.receive()
			must(t, m, reply)
			if string(m.Properties.CorrelationData) != correlation {
				t.Fatalf("%s: %q came", name, m.Payload)
			}
		}
		ts := []string{"__ts", now()}
		step("SET", request{payload: array("SET", key, "abc"), properties: ts}, "+OK\r\n",
			"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n", true)
		step("SET not applied", request{payload: array("SET", key, "x", "NX"), properties: ts},
			"-1\r\n", "", false)
		step("error", request{payload: array("SET", key, "x")}, errMissing, "", false)
		step("GET", request{payload: array("GET", key)}, "$3\r\nabc\r\n", "", false)
		step("VDEL not applied", request{payload: array("VDEL", key, "x")}, "-1\r\n", "", false)
		step("DEL", request{payload: array("DEL", key)}, ":1\r\n",
			"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n", true)
		step("DEL of nothing", request{payload: array("DEL", key)}, ":0\r\n", "", false)
		step("SET empty", request{payload: array("SET", key, ""), properties: ts}, "+OK\r\n",
			"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$0\r\n\r\n", true)

		// A watch remembers the dialect of its latest KEYNOTIFY.
		must(t, p.call(request{payload: array("KEYNOTIFY", key), properties: sdk()}), "+OK\r\n")
		step("VDEL, sdk", request{payload: array("VDEL", key, "")}, ":1\r\n",
			"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n", true)

		// Another client's changes come, too; after STOP nothing does.
		other := connect(t, target, "other", false)
		must(t, other.call(request{payload: array("SET", key, "o"), properties: ts}), "+OK\r\n")
		if n := p.receive(); string(
			n.Payload) != "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\no\r\n" {
			t.Errorf("%q", n.Payload)
		}
		must(t, p.call(request{payload: array("KEYNOTIFY", key, "STOP")}), "+OK\r\n")
		must(t, other.call(request{payload: array("SET", key, "p"), properties: ts}), "+OK\r\n")
		must(t, p.call(request{payload: array("GET", key)}), "$1\r\np\r\n")
	})
}

func must(t *testing.T, m *paho.Publish, want string) {
	t.Helper()
	if string(m.Payload) != want {
		t.Fatalf("%q, want %q", m.Payload, want)
	}
}

func checkNotification(t *testing.T, name string, n *paho.Publish) {
	t.Helper()
	if version, count := property(n, "__protVer"); version != "1.0" || count != 1 {
		t.Errorf("%s: __protVer %q, %d times", name, version, count)
	}
	if !newer(timestamp(n), "") || len(n.Properties.User) != 2 {
		t.Errorf("%s: user properties %v", name, n.Properties.User)
	}
	if n.Properties.CorrelationData != nil ||
		n.Properties.ContentType != "application/octet-stream" || n.QoS != 1 ||
		n.Properties.MessageExpiry == nil || *n.Properties.MessageExpiry > 30 ||
		*n.Properties.MessageExpiry < 28 {
		t.Errorf("%s: %+v", name, n.Properties)
	}
}

// A key with PX expires in time. Its watchers are notified once, with the version of its value, and
// GET and DEL do not find it any more.
func TestExpiryIsNotifiedOnceWithItsVersion(t *testing.T) {
	onBoth(t, nil, func(t *testing.T, target *target) {
		p := connect(t, target, "expirer", true)
		must(t, p.call(request{payload: array("KEYNOTIFY", "k"), properties: sdk()}), "+OK\r\n")
		began := time.Now()
		p.publish(request{
			payload:    array("SET", "k", "v", "PX", "700"),
			properties: []string{"__ts", now()},
		})
		set := p.receive()
		must(t, p.receive(), "+OK\r\n")
		replied := time.Now()
		gone := p.receive()
		if string(gone.Payload) != "*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n" ||
			timestamp(gone) != timestamp(set) {
			t.Errorf("%q %s, want the version %s", gone.Payload, timestamp(gone), timestamp(set))
		}
		early, late := time.Since(began), time.Since(replied)
		if early < 700*time.Millisecond || late > 1200*time.Millisecond {
			t.Errorf("gone between %v and %v after the SET", late, early)
		}
		must(t, p.call(request{payload: array("GET", "k")}), "$-1\r\n")
		must(t, p.call(request{payload: array("DEL", "k")}), ":0\r\n")

		// SET without PX removes the expiry.
		must(t, p.call(request{
			payload:    array("SET", "l", "v", "PX", "100"),
			properties: []string{"__ts", now()},
		}), "+OK\r\n")
		must(t, p.call(request{
			payload:    array("SET", "l", "v"),
			properties: []string{"__ts", now()},
		}), "+OK\r\n")
		p.publish(request{
			payload:    array("SET", "k", "v", "PX", "300"),
			properties: []string{"__ts", now()},
		})
		must(t, p.receive(), "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n")
		must(t, p.receive(), "+OK\r\n")
		must(t, p.receive(), "*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n")
		must(t, p.call(request{payload: array("GET", "l")}), "$1\r\nv\r\n")
	})
}

// The embedded broker delivers notifications to clients that never subscribed to them, and only
// once to those that did.
func TestEmbeddedBrokerDeliversWithoutSubscription(t *testing.T) {
	target := startEmbedded(t)
	for _, subscribed := range []bool{false, true} {
		p := connect(t, target, fmt.Sprintf("c%v", subscribed), subscribed)
		must(t, p.call(request{payload: array("KEYNOTIFY", p.id)}), "+OK\r\n")
		for i := range 3 {
			p.publish(request{
				payload:    array("SET", p.id, fmt.Sprint(i)),
				properties: []string{"__ts", now()},
			})
			must(t, p.receive(),
				fmt.Sprintf("*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\n%d\r\n", i))
			must(t, p.receive(), "+OK\r\n")
		}
	}
}

// A client's watches end when it disconnects. A late event of an earlier connection never ends a
// watch that the client made after it reconnected.
func TestWatchesEndWithTheConnection(t *testing.T) {
	target := startEmbedded(t)
	writer := connect(t, target, "writer", false)
	for round := range 20 {
		p := connect(t, target, "me", false)
		must(t, p.call(request{payload: array("KEYNOTIFY", "k")}), "+OK\r\n")
		// takes the session over: the old connection's end comes late
		again := connect(t, target, "me", false)
		must(t, again.call(request{payload: array("KEYNOTIFY", "k")}), "+OK\r\n")
		must(t, writer.call(request{
			payload:    array("SET", "k", "v"),
			properties: []string{"__ts", now()},
		}), "+OK\r\n")
		if n := again.receive(); string(
			n.Payload) != "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n" {
			t.Fatalf("round %d: %q", round, n.Payload)
		}
		_ = again.client.Disconnect(&paho.Disconnect{})
	}
	p := connect(t, target, "me", false)
	must(t, p.call(request{payload: array("KEYNOTIFY", "k", "STOP")}), ":0\r\n")
}

// With any broker that reports "no matching subscribers", a notification without a subscriber ends
// a watch that is more than 5 s old.
func TestNoSubscriberEndsTheWatch(t *testing.T) {
	t.Parallel() // it mostly waits
	target := startBehindMosquitto(t)
	p := connect(t, target, "me", false) // does not subscribe to its notifications
	must(t, p.call(request{payload: array("KEYNOTIFY", "k")}), "+OK\r\n")
	set := request{payload: array("SET", "k", "v"), properties: []string{"__ts", now()}}
	must(t, p.call(set), "+OK\r\n")
	p.subscribe(topics.Notifications + "#")
	p.publish(set)
	// a young watch goes on
	must(t, p.receive(), "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n")
	must(t, p.receive(), "+OK\r\n")
	ctx := t.Context()
	if _, err := p.client.Unsubscribe(ctx,
		&paho.Unsubscribe{Topics: []string{topics.Notifications + "#"}}); err != nil {
		t.Fatal(err)
	}
	must(t, p.call(request{payload: array("KEYNOTIFY", "[k]", "GLOB")}), "+OK\r\n")
	must(t, p.call(request{payload: array("KEYNOTIFY", "other*", "GLOB")}), "+OK\r\n")
	<-time.After(5100 * time.Millisecond) // the rule itself is about 5 s
	must(t, p.call(set), "+OK\r\n")
	for name, stop := range map[string][]string{
		"the watch":     {"KEYNOTIFY", "k", "STOP"},
		"the pattern's": {"KEYNOTIFY", "[k]", "GLOB", "STOP"},
	} {
		testwait.Until(t, name+" has ended",
			func() bool {
				return string(
					p.call(request{payload: array(stop...)}).Payload) == ":0\r\n"
			})
	}
	// its pattern does not match the key
	must(t, p.call(request{payload: array("KEYNOTIFY", "other*", "GLOB", "STOP")}), "+OK\r\n")
}

// The client id of a request is the one that the broker vouches for. With other brokers it is
// __srcId, or else comes from the response topic (docs/protocol.md, Who is asking).
func TestIdentityIsTheOneThatTheBrokerConfirms(t *testing.T) {
	t.Run("mosquitto", func(t *testing.T) {
		target := startBehindMosquitto(t)
		p := connect(t, target, "me", true)
		p.subscribe("elsewhere")
		watchAs := func(topic string, properties ...string) string {
			return string(p.call(request{
				payload: array("KEYNOTIFY", "k"), topic: topic,
				properties: properties,
			}).Payload)
		}
		for _, test := range []struct {
			name, topic string
			properties  []string
			want        string
		}{
			{"by __srcId", "elsewhere", []string{"__srcId", "a"}, "+OK\r\n"},
			{
				"the last __srcId counts", "elsewhere",
				[]string{"__srcId", "a", "__srcId", "b"},
				"+OK\r\n",
			},
			{"by the response topic", "", nil, "+OK\r\n"},
			{"unknown", "elsewhere", nil, errDenied},
			{
				"an empty __srcId is none", "elsewhere",
				[]string{"__srcId", "a", "__srcId", ""},
				errDenied,
			},
		} {
			t.Run(test.name, func(t *testing.T) {
				if got := watchAs(test.topic, test.properties...); got != test.want {
					t.Errorf("%q, want %q", got, test.want)
				}
			})
		}
		must(t, p.call(request{
			payload: array("KEYNOTIFY", "k", "STOP"), topic: "elsewhere",
			properties: []string{"__srcId", "b"},
		}), "+OK\r\n")
	})
	t.Run("embedded", func(t *testing.T) {
		target := startEmbedded(t)
		p := connect(t, target, "me", true)
		// The embedded broker knows the publisher: what the client claims does not count.
		must(t, p.call(request{
			payload:    array("KEYNOTIFY", "k"),
			properties: []string{"__srcId", "victim", "$holdfast-client-id", "victim"},
		}), "+OK\r\n")
		victim := connect(t, target, "victim", false)
		must(t, victim.call(request{payload: array("KEYNOTIFY", "k", "STOP")}), ":0\r\n")
		must(t, p.call(request{payload: array("KEYNOTIFY", "k", "STOP")}), "+OK\r\n")
	})
	t.Run("a trusted property that is missing", func(t *testing.T) {
		target := startBehindMosquitto(t, "--identity.clientIdProperty", "stamped")
		p := connect(t, target, "me", false)
		must(t, p.call(request{payload: array("GET", "k")}), errDenied)
		must(t, p.call(request{
			payload:    array("GET", "k"),
			properties: []string{"stamped", "forged", "stamped", "me"},
		}), "$-1\r\n")
	})
}

// The policy is enforced, and a change of its file takes effect without a restart
// (docs/operations.md, Authorization).
func TestPolicyIsEnforcedAndReadAgain(t *testing.T) {
	t.Parallel() // it mostly waits
	t.Run("embedded", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		writePolicy(t, file, linePolicy)
		checkPolicy(t, startEmbedded(t, "--policyFile", file), file)
	})
	t.Run("mosquitto", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		writePolicy(t, file, linePolicy)
		checkPolicy(t, startBehindMosquitto(t, "--policyFile", file), file)
	})
}

func writePolicy(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

const linePolicy = `
principals: {clientIds: ["line-*"]}
stateStoreResources:
  - {method: Read, keyType: Pattern, keys: ["n[0-9]", "clients/{principal.clientId}/*"]}
  - {method: ReadWrite, keyType: Binary, keys: ["AP8="]}
`

// checkPolicy checks what linePolicy allows and denies, and then changes the file.
func checkPolicy(t *testing.T, target *target, file string) {
	t.Helper()
	line, other := connect(t, target, "line-1", false), connect(t, target, "other", false)
	ts := []string{"__ts", now()}
	for _, test := range []struct {
		name    string
		p       *peer
		payload string
		want    string
	}{
		{"read", line, array("GET", "n1"), "$-1\r\n"},
		{"watch", line, array("KEYNOTIFY", "n1"), "+OK\r\n"},
		{"read own", line, array("GET", "clients/line-1/x"), "$-1\r\n"},
		{"read another's", line, array("GET", "clients/line-2/x"), errDenied},
		{"write where only reading is allowed", line, array("SET", "n1", "v"), errDenied},
		{
			"write on a condition", line, array("SET", "n1", "v", "IFVER", "1:0:StateStore"),
			errDenied,
		},
		{"delete on a condition", line, array("DEL", "n1", "IFVER", "1:0:StateStore"), errDenied},
		{"write", line, array("SET", "\x00\xff", "v"), "+OK\r\n"},
		{"delete", line, array("DEL", "\x00\xff"), ":1\r\n"},
		{"another client", other, array("GET", "n1"), errDenied},
		{"another client's watch", other, array("KEYNOTIFY", "n1"), errDenied},
		{"watch of any pattern", line, array("KEYNOTIFY", "*", "GLOB"), "+OK\r\n"},
		{"another client's, without any right", other, array("KEYNOTIFY", "*", "GLOB"), "+OK\r\n"},
		{"errors of the request come first", other, array("GET", ""), errEmptyKey},
	} {
		t.Run(test.name, func(t *testing.T) {
			if m := test.p.call(request{payload: test.payload, properties: ts}); string(
				m.Payload) != test.want {
				t.Errorf("%q, want %q", m.Payload, test.want)
			}
		})
	}
	writePolicy(t, file, "principals: {clientIds: [oops")
	// nodes read the file once a second, and take what two reads agree on
	<-time.After(3 * time.Second)
	must(t, line.call(request{payload: array("GET", "n1")}), "$-1\r\n")
	must(t, other.call(request{payload: array("GET", "n1")}), errDenied)
	writePolicy(t, file, "rules: [{principals: {clientIds: [other]}, stateStoreResources: [{method: Read, keys: ['*']}]}]\n")
	testwait.Until(t, "the changed policy is in force", func() bool {
		return string(other.call(request{payload: array("GET", "n1")}).Payload) == "$-1\r\n"
	})
	must(t, line.call(request{payload: array("GET", "n1")}), errDenied)
}

// The settings protocol.dialect and protocol.caseInsensitive change how requests are read and
// answered.
func TestSettingsChangeTheProtocol(t *testing.T) {
	onBoth(t, []string{"--protocol.dialect", "sdk", "--protocol.caseInsensitive"},
		func(t *testing.T, target *target) {
			p := connect(t, target, "me", false)
			ts := []string{"__ts", now()}
			must(t, p.call(request{
				payload:    array("set", "k", "v", "px", "100000"),
				properties: ts,
			}),
				"+OK\r\n")
			must(t, p.call(request{payload: array("Get", "k")}), "$1\r\nv\r\n")
			must(t, p.call(request{payload: array("set", "k", "w", "nx"), properties: ts}),
				":-1\r\n")
			must(t, p.call(request{payload: array("set", "k", "w", "ex"), properties: ts}),
				errSyntax)
			must(t, p.call(request{payload: array("get", "k", "l")}), errArguments)
			must(t, p.call(request{payload: array("expire", "k")}), errUnknown)
			must(t, p.call(request{payload: array("scan", "[k]")}), "*1\r\n*1\r\n$1\r\nk\r\n")
			must(t, p.call(request{payload: array("scan", "[")}), errSyntax)
			must(t, p.call(request{payload: array("scan", "k", "")}), errToken)
			must(t, p.call(request{
				payload:    array("set", "k", "w", "ifver", "1:0:StateStore"),
				properties: ts,
			}), ":-1\r\n")
		})
}

// † The watches of clients that died end when there are nearly as many as may be: others are not
// refused for ever because of a client that crashes again and again with another id. A client that
// is there keeps its watch.
func TestWatchesOfDeadClientsMakeRoom(t *testing.T) {
	t.Parallel() // it mostly waits
	// the embedded broker tells who disconnects
	target := startBehindMosquitto(t, "--limits.watches", "10")
	alive := connect(t, target, "alive", true)
	must(t, alive.call(request{payload: array("KEYNOTIFY", "k")}), "+OK\r\n")
	for i := range 9 {
		p := connect(t, target, fmt.Sprint("dead-", i), true)
		must(t, p.call(request{payload: array("KEYNOTIFY", "k")}), "+OK\r\n")
		if err := p.client.Disconnect(&paho.Disconnect{}); err != nil {
			t.Fatal(err)
		}
	}
	late := connect(t, target, "late", true)
	testwait.Until(t, "there is room for another watch", func() bool {
		return string(late.call(request{payload: array("KEYNOTIFY", "k")}).Payload) == "+OK\r\n"
	})
	must(t, connect(t, target, "writer",
		false).call(request{payload: array("SET", "k", "v"), properties: []string{"__ts", now()}}),
		"+OK\r\n")
	for {
		n := alive.receive()
		if string(n.Payload) == "*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n" {
			break
		}
		if string(n.Payload) != "*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n" {
			// the key is not there, once more
			t.Fatalf("%q", n.Payload)
		}
	}
}
