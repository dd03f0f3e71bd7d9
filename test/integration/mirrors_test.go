package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/client"
	"holdfast/internal/testwait"
)

// retained subscribes, and returns the retained messages that the broker then sends: version and
// value, by topic. A message on the topic marker is the last one.
func (p *peer) retained(filters ...string) map[string]string {
	p.t.Helper()
	const marker = "behind/retained"
	p.subscribe(marker)
	for _, filter := range filters {
		p.subscribe(filter)
	}
	if _, err := p.client.Publish(p.t.Context(), &paho.Publish{Topic: marker, QoS: 1}); err != nil {
		p.t.Fatal(err)
	}
	found := make(map[string]string)
	for m := p.receive(); m.Topic != marker; m = p.receive() {
		found[m.Topic] = m.Properties.User.Get("__ts") + " " + string(m.Payload)
	}
	if _, err := p.client.Unsubscribe(p.t.Context(),
		&paho.Unsubscribe{Topics: filters}); err != nil {
		p.t.Fatal(err)
	}
	for len(p.inbox) > 0 { // what was published while it was subscribed
		<-p.inbox
	}
	return found
}

// late returns the retained messages that a new client is sent, from the topics that begin with
// below.
func late(t *testing.T, address, below string) map[string]string {
	t.Helper()
	p := connect(t, &target{address: address}, fmt.Sprintf("late-%d", counter.Add(1)), false)
	defer func() { _ = p.client.Disconnect(&paho.Disconnect{}) }() // it has seen what it wanted
	return p.retained(below + "#")
}

// state returns the keys that match a pattern, as a mirror would show them: version and value by
// topic.
func state(t *testing.T, c *client.Client, pattern, topic string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for key, err := range c.Keys(t.Context(), pattern) {
		if err != nil {
			t.Fatal(err)
		}
		value, version, err := c.Get(t.Context(), key)
		if errors.Is(err, client.ErrNotFound) {
			// a DEL of a client that has stopped may still be executed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		found[topic+key] = version.String() + " " + string(value)
	}
	return found
}

// mirrored waits until a late subscriber is sent exactly the state.
func mirrored(t *testing.T, address string, c *client.Client, pattern, topic string) {
	t.Helper()
	var got, want map[string]string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-time.After(
		100 * time.Millisecond) {
		if got, want = late(t, address, topic), state(t, c, pattern, topic); maps.Equal(got, want) {
			return
		}
	}
	t.Fatalf("a late subscriber is sent %d messages %.2000v,\nand the state has %d keys %.2000v",
		len(got), got, len(want), want)
}

func storeOf(t *testing.T, address string) *client.Client {
	t.Helper()
	return impatientStoreOf(t, address, 20*time.Second)
}

// impatientStoreOf returns a client whose requests fail if the answer takes longer than patience.
func impatientStoreOf(t *testing.T, address string, patience time.Duration) *client.Client {
	t.Helper()
	c, err := client.Connect(t.Context(),
		client.Config{Addresses: []string{"mqtt://" + address}, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// churn sets and deletes a few keys again and again. Errors are ignored, because the nodes may be
// down.
type churn struct {
	cancel context.CancelFunc
	work   sync.WaitGroup
	done   atomic.Int64
}

func startChurn(t *testing.T, address string) *churn {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &churn{cancel: cancel}
	for worker := range 4 {
		// a request that waits while all are down is answered late
		store := impatientStoreOf(t, address, 2*time.Second)
		c.work.Go(func() {
			for number := worker; ctx.Err() == nil; number += 7 {
				key := fmt.Sprintf("load/%d", number%60)
				if _, err := store.Set(ctx, key, []byte(fmt.Sprint(number))); err == nil &&
					number%3 == 0 {
					_, _ = store.Del(ctx, key)
				}
				c.done.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
	}
	t.Cleanup(c.stop)
	return c
}

// progress waits until 200 further steps were done.
func (c *churn) progress(t *testing.T) {
	t.Helper()
	want := c.done.Load() + 200
	testwait.Until(t, "keys change", func() bool { return c.done.Load() >= want })
}

func (c *churn) stop() {
	c.cancel()
	c.work.Wait()
}

// Every change of a mirrored key is published as a retained message on its topic, its expiry
// included. A key that makes no valid topic is not published.
func TestMirrorShowsEachKeyAsItIs(t *testing.T) {
	onBoth(t, withMirrors(), func(t *testing.T, target *target) {
		p := connect(t, target, "publisher", false)
		watcher := connect(t, target, "dashboard", false)
		watcher.subscribe("mirror/#")
		set := func(key, value string, options ...string) string {
			t.Helper()
			reply := p.call(request{payload: array(append([]string{"SET", key, value},
				options...)...), properties: []string{"__ts", now()}})
			must(t, reply, "+OK\r\n")
			return timestamp(reply)
		}
		shows := func(topic, payload, version string) {
			t.Helper()
			m := watcher.receive()
			if got := m.Properties.User.Get("__ts"); m.Topic != topic ||
				string(m.Payload) != payload || got != version || m.QoS != 1 {
				t.Errorf("%s shows %q of version %q with QoS %d; want %s, %q, %q", m.Topic,
					m.Payload, got, m.QoS, topic, payload, version)
			}
		}
		version := set("mirrored/7", "running")
		shows("mirror/mirrored/7", "running", version)
		set("other", "x")
		for _, key := range []string{
			"mirrored/+", "mirrored/#", "mirrored/\x00", "mirrored/\x01",
			"mirrored/\xff",
		} {
			set(key, "x")
		}
		version = set("mirrored/\xc3\xa9", "binary \x00\xff")
		shows("mirror/mirrored/\xc3\xa9", "binary \x00\xff", version)
		must(t, p.call(request{payload: array("DEL", "mirrored/7")}), ":1\r\n")
		shows("mirror/mirrored/7", "", "")
		version = set("mirrored/8", "brief", "PX", "2000")
		shows("mirror/mirrored/8", "brief", version)
		shows("mirror/mirrored/8", "", "")
		// A client cannot have its replies published there: such a request is not executed.
		forger := connect(t, target, "mirror-forger", false)
		forger.publish(request{
			payload:    array("SET", "mirrored/forged", "x"),
			properties: []string{"__ts", now()}, topic: "mirror/mirrored/7",
		})
		must(t, p.call(request{payload: array("TXN", array("SET", "mirrored/9", "txn"),
			array("DEL", "other")), properties: []string{"__ts", now()}}), "*2\r\n+OK\r\n:1\r\n")
		if m := watcher.receive(); m.Topic != "mirror/mirrored/9" || string(m.Payload) != "txn" {
			t.Errorf("%s shows %q", m.Topic, m.Payload)
		}
		// One by one: RabbitMQ sends no retained messages to a subscription with a wildcard.
		shown := connect(t, target, "late", false).retained("mirror/mirrored/7",
			"mirror/mirrored/8", "mirror/mirrored/9", "mirror/mirrored/\xc3\xa9")
		if got := slices.Sorted(maps.Keys(shown)); !slices.Equal(got,
			[]string{"mirror/mirrored/9", "mirror/mirrored/\xc3\xa9"}) {
			t.Errorf("a late subscriber is sent %q", got)
		}
	})
}

// After crashes of nodes and of the broker, a late subscriber is sent exactly the state again, and
// a client that follows the keys (client.Follow) has it, too.
func TestMirrorsAreInLineAfterCrashes(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--mirrors", "load/*=mirror/")
	store := storeOf(t, broker.address)
	follower, err := store.Follow(t.Context(), "load/*")
	if err != nil {
		t.Fatal(err)
	}
	var churning *churn
	killBroker := func() {
		broker.process.kill()
		broker.start(t)
	}
	for name, disturb := range map[string]func(){
		"leader killed": func() {
			leader := m.leader(t)
			leader.kill()
			leader.start(t)
		},
		"leader stopped": func() {
			leader := m.leader(t)
			leader.signal(t, syscall.SIGSTOP)
			churning.progress(t)
			leader.signal(t, syscall.SIGCONT)
		},
		"all killed": func() {
			for _, s := range m {
				s.kill()
			}
			for _, s := range m {
				s.start(t)
			}
		},
		// Debian's keeps what it retains in memory only, as it is configured here
		"broker killed": killBroker,
		"all and the broker killed": func() {
			for _, s := range m {
				s.kill()
			}
			killBroker()
			for _, s := range m {
				s.start(t)
			}
		},
		"retained messages forged": func() {
			if _, code := holdfast(t, broker.address, "", "mirror", "resync", "--admin", "http://"+
				m.leader(t).admin); code != 0 {
				// from here on no comparison is under way, which could correct the forged messages
				t.Errorf("exit code %d", code)
			}
			forge(t, broker.address, "mirror/nonsense", "forged")
			forge(t, broker.address, "mirror/load/0", "forged")
			forge(t, broker.address, "mirror/load/1", "")
			if output, code := holdfast(t, broker.address, "", "mirror", "check", "--admin",
				"http://"+m.leader(t).admin); code != 1 {
				t.Errorf("the check says %q, exit code %d", output, code)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			churning = startChurn(t, broker.address)
			churning.progress(t)
			disturb()
			churning.progress(t)
			churning.stop()
			mirrored(t, broker.address, store, "load/*", "mirror/")
			testwait.Until(t, "the follower has the state", func() bool {
				copied := make(map[string]string)
				for key, item := range follower.All() {
					copied["mirror/"+key] = item.Version.String() + " " + string(item.Value)
				}
				return follower.Synced() && maps.Equal(copied, state(t, store, "load/*", "mirror/"))
			})
		})
	}
}

// Mirrors begin, change and end with the settings. Retained messages below a prefix that no mirror
// has any more stay at the broker.
func TestMirrorsFollowTheSettings(t *testing.T) {
	broker := startMosquitto(t)
	folder := t.TempDir()
	s := newServer(t, "mqtt://"+broker.address, folder)
	s.waitReady(t)
	store := storeOf(t, broker.address)
	for _, key := range []string{"a/1", "a/2", "b/1"} {
		if _, err := store.Set(t.Context(), key, []byte("of "+key)); err != nil {
			t.Fatal(err)
		}
	}
	restart := func(mirrors string) {
		t.Helper()
		if code, _ := s.stop(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		s = newServer(t, "mqtt://"+broker.address, folder, "--mirrors", mirrors)
		s.waitReady(t)
	}
	restart("a/*=first/")
	mirrored(t, broker.address, store, "a/*", "first/")
	restart("b/*=first/,a/2=second/")
	mirrored(t, broker.address, store, "b/*", "first/")
	mirrored(t, broker.address, store, "a/2", "second/")
	restart("b/*=first/")
	if _, err := store.Del(t.Context(), "a/2"); err != nil {
		t.Fatal(err)
	}
	mirrored(t, broker.address, store, "b/*", "first/")
	if left := late(t, broker.address, "second/"); len(left) != 1 {
		t.Errorf("%v are left", left)
	}
}

// forge publishes a retained message as another client.
func forge(t *testing.T, address, topic, payload string) {
	t.Helper()
	p := connect(t, &target{address: address}, "forger", false)
	if _, err := p.client.Publish(t.Context(),
		&paho.Publish{Topic: topic, QoS: 1, Retain: true, Payload: []byte(payload)}); err != nil {
		t.Log(err) // no subscriber
	}
	_ = p.client.Disconnect(&paho.Disconnect{}) // it is done
}

// mirror runs a subcommand of `holdfast mirror`, and checks its exit code and that it prints want.
func (s *server) mirror(t *testing.T, want string, wantCode int, arguments ...string) {
	t.Helper()
	output, code := holdfast(t, "none", "",
		append([]string{"mirror"}, append(arguments, "--admin", "http://"+s.admin)...)...)
	if code != wantCode || !strings.Contains(output, want) {
		t.Errorf("%v: exit code %d, %q; want %d, %q", arguments, code, output, wantCode, want)
	}
}

// `mirror list` and `mirror check` report how the broker differs from the state, and `mirror
// resync` waits until it does not. A check also corrects what it finds.
func TestMirrorCommandsReportDifferences(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	s := newServer(t, "mqtt://"+broker.address, t.TempDir(), "--mirrors", "a/*=mirror/")
	s.waitReady(t)
	store := storeOf(t, broker.address)
	for key, value := range map[string]string{"a/1": "x", "a/2": "x", "a/empty": "", "b": "x"} {
		if _, err := store.Set(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Set(t.Context(), "a/#", []byte("makes no topic")); err != nil {
		t.Fatal(err)
	}
	if metrics := s.metrics(t); !strings.Contains(metrics,
		`holdfast_mirror_topics_total{result="skipped"} 1`) {
		t.Error("a key that makes no topic is not counted")
	}
	if _, err := store.Del(t.Context(), "a/#"); err != nil {
		t.Fatal(err)
	}
	s.mirror(t, "3 keys have a mirror", 0, "resync")
	s.mirror(t, "a/*   mirror/", 0, "list")
	s.mirror(t, "The broker has what the mirrors show.", 0, "list")
	s.mirror(t, `"inSync":true`, 0, "list", "-o", "json")
	s.mirror(t, "0 retained messages were missing and 0 were not as in the state", 0, "check")
	forge(t, broker.address, "mirror/a/1", "")
	s.mirror(t, "1 retained messages were missing and 0 were not", 1, "check")
	forge(t, broker.address, "mirror/"+strings.Repeat("x/", 150),
		"of more levels than a mirror shows")
	forge(t, broker.address, "mirror/a/2", "forged")
	s.mirror(t, "0 retained messages were missing and 2 were not as in the state", 1, "check")
	s.mirror(t, "0 retained messages were missing and 0 were not as in the state", 0, "check")
	mirrored(t, broker.address, store, "a/[12]", "mirror/")
}

// If a value is too large for the broker, an older retained message of its key is cleared, and none
// is published.
func TestMirrorOfAValueThatTheBrokerDoesNotTake(t *testing.T) {
	large, small := startMosquitto(t), startMosquitto(t, "max_packet_size 3000")
	folder := t.TempDir()
	s := newServer(t, "mqtt://"+large.address, folder, "--mirrors", "a/*=mirror/")
	s.waitReady(t)
	if _, err := storeOf(t, large.address).Set(t.Context(), "a/1",
		[]byte(strings.Repeat("x", 4000))); err != nil {
		t.Fatal(err)
	}
	if code, _ := s.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	forge(t, small.address, "mirror/a/1", "old")
	s = newServer(t, "mqtt://"+small.address, folder, "--mirrors", "a/*=mirror/")
	s.waitReady(t)
	s.mirror(t, "1 keys have a mirror", 0, "resync")
	if got := late(t, small.address, "mirror/"); len(got) != 0 {
		t.Errorf("%v is shown", got)
	}
	s.mirror(t, "0 retained messages were missing and 0 were not as in the state", 0, "check")
}

// If the broker drops retained messages because its queue is full, the comparison (of what the
// broker retains with the state) is repeated until no stale message is left.
func TestMirrorsWithABrokerThatDropsRetainedMessages(t *testing.T) {
	broker := startMosquitto(t, "max_queued_bytes 100000")
	p := connect(t, &target{address: broker.address}, "forger", false)
	for i := range 1000 {
		message := &paho.Publish{
			Topic: fmt.Sprintf("mirror/old/%d", i), QoS: 0, Retain: true,
			Payload: []byte(strings.Repeat("x", 1000)),
		}
		if _, err := p.client.Publish(t.Context(), message); err != nil {
			t.Fatal(err)
		}
	}
	s := newServer(t, "mqtt://"+broker.address, t.TempDir(), "--mirrors", "a/*=mirror/")
	s.waitReady(t)
	store := storeOf(t, broker.address)
	if _, err := store.Set(t.Context(), "a/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	s.mirror(t, "1 keys have a mirror", 0, "resync")
	mirrored(t, broker.address, store, "a/*", "mirror/")
}

// Topics that the broker refuses do not keep other topics from being published, even if the broker
// ends the connection with each refusal.
func TestRefusedMirrorsDelayNoOthers(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t, "user root", "acl_file "+
		rulesOf(t, "topic readwrite mirror/z/#", "topic read mirror/#"))
	s := newServer(t, "mqtt://"+broker.address, t.TempDir(), "--mirrors",
		"load/*=private/,*=mirror/")
	s.waitReady(t)
	store := storeOf(t, broker.address)
	// of the mirror private/, which the broker refuses as a whole
	churning := startChurn(t, broker.address)
	for _, key := range []string{"a0", "a1", "z/1", "z/2"} {
		// of the mirror mirror/, of which the broker allows only mirror/z/
		if _, err := store.Set(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	mirrored(t, broker.address, store, "z/*", "mirror/")
	testwait.Until(t, "the list says so", func() bool {
		// without a connection, the list reports that instead
		output, code := holdfast(t, "none", "", "mirror", "list", "--admin", "http://"+s.admin)
		return code == 0 && strings.Contains(output, "The broker refuses")
	})
	churning.progress(t)
	if _, err := store.Set(t.Context(), "z/1", []byte("y")); err != nil {
		t.Fatal(err)
	}
	mirrored(t, broker.address, store, "z/*", "mirror/")
}

// rulesOf returns a file with the access rules that nodes and clients need, and more.
func rulesOf(t *testing.T, more ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "acl")
	rules := append([]string{
		"topic readwrite statestore/#", "topic readwrite clients/#",
		"topic readwrite holdfast/#", "topic readwrite behind/#",
	}, more...)
	if err := os.WriteFile(file, []byte(strings.Join(rules, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// If nodes may publish mirrors but not read them, `mirror check` and `mirror list` report that, and
// not that messages are missing.
func TestMirrorThatNodesMayNotReadIsBlind(t *testing.T) {
	broker := startMosquitto(t, "user root", "acl_file "+rulesOf(t, "topic write mirror/#"))
	s := newServer(t, "mqtt://"+broker.address, t.TempDir(), "--mirrors", "a/*=mirror/")
	s.waitReady(t)
	if _, err := storeOf(t, broker.address).Set(t.Context(), "a/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	s.mirror(t, "does not send what it retains", 1, "check")
	s.mirror(t, "does not send what it retains", 0, "list")
}

// With the access rules that are shipped, clients cannot publish what mirrors show.
func TestOnlyNodesPublishMirrors(t *testing.T) {
	g := startGuarded(t)
	acl, err := os.ReadFile(deployed + "/acl")
	if err != nil || !strings.Contains(string(acl), "\ntopic readwrite mirror/#\n") {
		t.Fatalf("the shipped rules let nodes publish no mirrors: %v", err)
	}
	s, _ := startGuardedServer(t, g, "--mirrors", "public/*=mirror/")
	press := g.connect(t, "press-1", "press")
	response, err := press.client.Publish(t.Context(),
		&paho.Publish{Topic: "mirror/public/x", QoS: 1, Retain: true, Payload: []byte("forged")})
	if response == nil || response.ReasonCode != 0x87 {
		t.Errorf("%+v, %v", response, err)
	}
	if output, code := holdfast(t, g.address, "", "mirror", "check", "--admin", "http://"+
		s.admin); code != 0 {
		t.Errorf("exit code %d: %s", code, output)
	}
}
