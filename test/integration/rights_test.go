package integration

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/client"
	"holdfast/internal/testwait"
)

// † Nothing shows a client more than a GET would (as CVE-2026-73499 of etcd did: a watch with fewer
// rights than a read): watches of keys and of patterns, also with changes that a transaction or an
// expiry makes, the keys of SCAN, Follow, and what the store says of conditions.
func TestNothingShowsMoreThanARead(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	writePolicy(t, policy, `rules:
- {principals: {clientIds: ["writer"]}, stateStoreResources: [{method: ReadWrite, keyType: Pattern, keys: ["*"]}]}
- {principals: {clientIds: ["reader"]}, stateStoreResources: [{method: Read, keyType: Pattern, keys: ["open/*"]}, {method: Write, keyType: Pattern, keys: ["box/*"]}]}
`)
	target := startBehindMosquitto(t, "--policyFile", policy)
	writer, reader := connect(t, target, "writer", false), connect(t, target, "reader", true)
	set := func(key string, more ...string) {
		t.Helper()
		arguments := append([]string{"SET", key, "v"}, more...)
		must(t, writer.call(request{
			payload:    array(arguments...),
			properties: []string{"__ts", now()},
		}), "+OK\r\n")
	}
	set("secret/1")
	set("box/1")
	for _, command := range [][]string{
		{"GET", "secret/1"},
		{"KEYNOTIFY", "secret/1"},
		{"KEYNOTIFY", "box/1"},
		{"GET", "box/1"},
		{"DEL", "secret/1"},
	} {
		must(t, reader.call(request{payload: array(command...)}), "-ERR not authorized\r\n")
	}
	for _, pattern := range []string{"*", "secret/*", "box/*", "[!o]*", "open/*"} {
		must(t, reader.call(request{payload: array("KEYNOTIFY", pattern, "GLOB")}), "+OK\r\n")
	}
	set("secret/2", "PX", "50")
	set("box/2")
	must(t, writer.call(request{payload: array("DEL", "secret/1")}), ":1\r\n")
	parts := []string{"TXN"}
	for _, key := range []string{"secret/3", "box/3", "open/1"} {
		parts = append(parts, array("SET", key, "v"))
	}
	must(t, writer.call(request{payload: array(parts...), properties: []string{"__ts", now()}}),
		"*3\r\n+OK\r\n+OK\r\n+OK\r\n")
	testwait.Until(t, "the key has expired", func() bool {
		return string(writer.call(request{payload: array("GET", "secret/2")}).Payload) == "$-1\r\n"
	})
	notified := reader.receive()
	if !strings.HasSuffix(notified.Topic, fmt.Sprintf("%X", "open/1")) {
		t.Fatalf("the first notification is on %s", notified.Topic)
	}
	set("open/2") // whatever the expiry has told came before this
	if notified = reader.receive(); !strings.HasSuffix(notified.Topic,
		fmt.Sprintf("%X", "open/2")) {
		t.Fatalf("the second notification is on %s", notified.Topic)
	}
	if page := string(reader.call(request{payload: array("SCAN", "*")}).Payload); !strings.Contains(
		page, "open/1") || strings.Contains(page, "secret") || strings.Contains(page, "box") {
		t.Errorf("SCAN: %q", page)
	}
	follower, err := client.Connect(t.Context(),
		client.Config{Addresses: []string{"mqtt://" + target.address}, ClientID: "reader"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = follower.Close() }()
	copied, err := follower.Follow(t.Context(), "*")
	if err != nil {
		t.Fatal(err)
	}
	set("secret/4")
	set("box/4")
	set("open/3")
	testwait.Until(t, "the copy has what the client may read", func() bool {
		_, before := copied.Get("open/1")
		_, after := copied.Get("open/3")
		return before && after
	})
	for key := range copied.All() {
		if !strings.HasPrefix(key, "open/") {
			t.Errorf("Follow shows %s", key)
		}
	}
}

// Exports, the status page and the rest of the admin API show all keys: they need an
// administrator's certificate, or the machine itself. The port for health and metrics shows none of
// them.
func TestHealthPortShowsNoKeys(t *testing.T) {
	s := newServer(t, "mqtt://"+startMosquitto(t).address, t.TempDir())
	s.waitReady(t)
	for _, path := range []string{
		"/v1/keys", "/v1/export", "/v1/watches", "/v1/mirrors", "/ui",
		"/",
	} {
		if code := httpStatus("http://" + s.health + path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}
