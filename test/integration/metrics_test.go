package integration

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/client"
)

// labels lists the values that the labels of Holdfast's metrics may have, le (the bound of a
// bucket) excepted.
const labels = `agree differ incomplete cleared skipped too_large abandoned set get del vdel keynotify other done not_applied missing dropped error queue commit publish log vote term ` +
	`published expired given_up no_subscriber refused full expired stale invalid stuck outcome_unknown overloaded reply notification made present age client_share scans outcomes txn done untrusted unsupported failed ` +
	`size limits.keyBytes limits.valueBytes notification_topic limits.keys limits.totalBytes limits.keysPerClient limits.bytesPerClient node.minFreeDisk ` +
	`limits.watches watch_bytes limits.watchesPerClient patterns pattern_bytes txn_read_bytes txn_patterns ` +
	`no_response_topic bad_response_topic retained logged no_watches`

// metrics returns what a scraper gets.
func (s *server) metrics(t testing.TB) string {
	t.Helper()
	response, err := http.Get("http://" + s.health + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// No label of a metric has a value that a client sends, such as its client id or a key: clients
// could create any number of time series.
func TestMetricsHaveNoLabelsOfClients(t *testing.T) {
	const evil = "evil-label"
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address)
	store, err := client.Connect(t.Context(),
		client.Config{Addresses: []string{broker.address}, ClientID: evil})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	watcher, err := store.Watch(t.Context(), evil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watcher.Close(t.Context()) }()
	for _, key := range []string{evil, evil + "2"} {
		if _, err := store.Set(t.Context(), key, []byte(evil)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := store.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Del(t.Context(), evil); err != nil {
		t.Fatal(err)
	}
	label := regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	known := strings.Fields(labels)
	metrics := 0
	for _, s := range m {
		body := s.metrics(t)
		if strings.Contains(body, evil) {
			t.Error("a client's word is in the metrics")
		}
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "holdfast_") {
				continue
			}
			metrics++
			for _, pair := range label.FindAllStringSubmatch(line, -1) {
				if pair[1] != "le" && !slices.Contains(known, pair[2]) {
					t.Errorf("label %s=%q in %s", pair[1], pair[2], line)
				}
			}
		}
	}
	if metrics < 300 {
		t.Errorf("only %d samples", metrics)
	}
}
