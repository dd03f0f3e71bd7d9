package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/cluster/membership"
	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/policy"
	"holdfast/internal/testwait"
)

// idle is an observer that does nothing.
type idle struct{}

func (idle) Applied(*fsm.EntryOutcome, []any) {}
func (idle) ReadDone(any, uint64, fsm.Result) {}
func (idle) Failed(any, bool)                 {}
func (idle) Restored(fsm.Status)              {}
func (idle) BrokerDownFor() time.Duration     { return 0 }
func (idle) Serve(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// idleBroker has never been asked anything.
type idleBroker struct{}

func (idleBroker) Asked() (uint64, int)       { return 0, 0 }
func (idleBroker) Heard(uint64) bool          { return false }
func (idleBroker) Delivered(time.Time) bool   { return true }
func (idleBroker) DeliveringSince() time.Time { return time.Time{} }
func (idleBroker) Ask()                       {}
func (idleBroker) Rejoin(int)                 {}

type noOffer struct{}

func (noOffer) Load() ([]byte, error) { return nil, nil }
func (noOffer) Save([]byte) error     { return nil }

// api is the admin API of one member of a test cluster.
type api struct {
	t    *testing.T
	node *cluster.Node
	url  string

	mirrors *fakeMirrors
	nodes   map[raft.ServerID]*cluster.Node // the nodes of all members, by Raft id
}

// startAPIs starts three members with their admin APIs, and waits for a leader.
func startAPIs(t *testing.T) (leader, follower *api) {
	t.Helper()
	network := cluster.NewNetwork()
	var servers []raft.Server
	for i := range 3 {
		id := fmt.Sprintf("n%d.x", i+1)
		servers = append(servers,
			raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	var list []*api
	nodes := make(map[raft.ServerID]*cluster.Node)
	for _, server := range servers {
		config := cluster.DefaultConfig()
		config.ID, config.Address, config.Members = server.ID, server.Address, servers
		store := raft.NewInmemStore()
		node, err := cluster.Open(config, cluster.Environment{
			Stores: raftlog.Stores{
				Log: store, Stable: store, Snapshots: raft.NewInmemSnapshotStore(),
				Offered: noOffer{}, Close: func() error { return nil },
			},
			Transport: network.Transport(server.ID, config.Timing), Client: network,
			Clock: cluster.SystemClock(), Random: rand.Uint64,
			FreeSpace: func() (uint64, bool) { return 1 << 40, false }, Broker: idleBroker{},
			Exit:    func(err error) { t.Error(err) },
			Log:     slog.New(slog.DiscardHandler),
			Metrics: cluster.NewMetrics(prometheus.NewRegistry()),
		}, idle{})
		if err != nil {
			t.Fatal(err)
		}
		network.Attach(node)
		registry := prometheus.NewRegistry()
		cluster.RegisterState(registry, node)
		mirrors := &fakeMirrors{}
		handler := Admin(AdminConfig{
			Name: peer.NodeName(server.ID), Node: node, Ready: func() error { return nil },
			Notes: func() []string { return nil },
			Dial:  network.DialHTTP, Log: slog.New(slog.DiscardHandler), Metrics: registry,
			Version: "test", Mirrors: mirrors,
		})
		forwarded := Serve(network.HTTP(server.ID), handler, slog.New(slog.DiscardHandler))
		outside := httptest.NewServer(handler)
		t.Cleanup(func() {
			outside.Close()
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = forwarded.Close(ctx)
			_ = node.Close(ctx)
		})
		nodes[server.ID] = node
		list = append(list, &api{t, node, outside.URL, mirrors, nodes})
	}
	testwait.Within(t, 20*time.Second, "a node leads", func() bool {
		for i, a := range list {
			if s := a.node.Status(); s.Serving {
				leader, follower = a, list[(i+1)%3]
			}
		}
		return leader != nil
	})
	return leader, follower
}

func (a *api) call(method, path string, body []byte, into any) int {
	a.t.Helper()
	request, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path,
		bytes.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if into == nil {
		_, _ = io.Copy(io.Discard, response.Body)
	} else if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		a.t.Errorf("%s %s: %d %v", method, path, response.StatusCode, err)
	}
	return response.StatusCode
}

func (a *api) execute(c fsm.Command) {
	a.t.Helper()
	c.Principal = policy.Principal{ClientID: "c"}
	if _, err := a.node.Execute(a.t.Context(), c); err != nil {
		a.t.Fatal(err)
	}
}

func (a *api) set(key, value string) {
	a.t.Helper()
	a.execute(fsm.Command{
		Kind: fsm.KindSet, Key: []byte(key), Value: []byte(value),
		Timestamp: hlc.Timestamp{Wall: time.Now().UnixMilli(), NodeID: "c"},
	})
}

// Any node answers requests about keys and watches. Keys may be any bytes. Pages leave out no key,
// and repeat none.
func TestAnyNodeListsKeysAndEndsWatches(t *testing.T) {
	leader, follower := startAPIs(t)
	keys := []string{"a b", "a;b", "a&b=c", "a\xff\x00", "a%zz", "a+b", "b"}
	for _, key := range keys {
		leader.set(key, "v\xfe")
		leader.execute(fsm.Command{Kind: fsm.KindKeyNotify, Key: []byte(key)})
	}
	found := map[string]bool{}
	for after := ""; ; {
		var page Keys
		query := url.Values{"prefix": {"a"}, "after": {after}, "limit": {"2"}}
		if code := follower.call(http.MethodGet, "/v1/keys?"+query.Encode(), nil,
			&page); code != 200 {
			t.Fatal(code)
		}
		for _, key := range page.Keys {
			data, _ := base64.StdEncoding.DecodeString(key.Key.Base64)
			if found[string(data)] {
				t.Errorf("%q is there twice", data)
			}
			found[string(data)] = true
			if len(key.Watchers) != 1 || key.TTL != nil || key.Size != 2 {
				t.Errorf("%+v", key)
			}
		}
		next, _ := base64.StdEncoding.DecodeString(page.Next)
		if after = string(next); after == "" {
			break
		}
	}
	if len(found) != len(keys)-1 {
		t.Errorf("%d of %d keys: %v", len(found), len(keys)-1, found)
	}
	var key Key
	if code := follower.call(http.MethodGet, "/v1/key?"+url.Values{"key": {"a\xff\x00"}}.Encode(),
		nil, &key); code != 200 ||
		key.Value.Base64 != base64.StdEncoding.EncodeToString([]byte("v\xfe")) {
		t.Errorf("%d %+v", code, key)
	}
	var failure Error
	if code := follower.call(http.MethodGet, "/v1/key?key=none", nil, &failure); code != 404 ||
		failure.Outcome != "not done" {
		t.Errorf("%d %+v", code, failure)
	}
	var count KeyCount
	if follower.call(http.MethodGet, "/v1/keys/count?prefix=a", nil,
		&count); count.Count != len(keys)-1 {
		t.Errorf("%+v", count)
	}
	var owners Owners
	if follower.call(http.MethodGet, "/v1/keys/owners", nil, &owners); len(owners.Owners) != 1 ||
		owners.Owners[0].Keys != int64(len(keys)) {
		t.Errorf("%+v", owners)
	}
	// A malformed query is refused. To ignore a part of it could end more watches than were meant.
	for _, query := range []string{
		"client=c&key=a;b", "client=c&key=", "client=&key=a",
		"client=c&prefix=x", "client=c&client=d", "client=%zz", "",
	} {
		t.Run(query, func(t *testing.T) {
			if code := follower.call(http.MethodDelete, "/v1/watches?"+query, nil,
				&failure); code != 400 {
				t.Errorf("%q: %d", query, code)
			}
		})
	}
	var dropped EndedWatches
	if follower.call(http.MethodDelete, "/v1/watches?"+url.Values{"key": {"a;b"}}.Encode(), nil,
		&dropped); dropped.Dropped != 1 {
		t.Errorf("%+v", dropped)
	}
	var watches Watches
	if follower.call(http.MethodGet, "/v1/watches?client=c", nil,
		&watches); len(watches.Watches) != len(keys)-1 {
		t.Errorf("%+v", watches)
	}
	if follower.call(http.MethodDelete, "/v1/watches?client=c", nil,
		&dropped); dropped.Dropped != len(keys)-1 {
		t.Errorf("%+v", dropped)
	}
}

// Any node forwards to the leader what only the leader can do. One such request is to demote the
// leader itself, which transfers the leadership first.
func TestAnyNodeForwardsChangesToTheLeader(t *testing.T) {
	leader, follower := startAPIs(t)
	leader.set("k", "v")
	var list []membership.Member
	if code := follower.call(http.MethodGet, "/v1/members", nil, &list); code != 200 ||
		len(list) != 3 {
		t.Fatal(code, list)
	}
	var v cluster.Verification
	if follower.call(http.MethodGet, "/v1/verify", nil, &v); !v.Agree || len(v.Hashes) != 3 {
		t.Errorf("%+v", v)
	}
	var health cluster.Health
	if code := follower.call(http.MethodGet, "/v1/autopilot", nil, &health); code != 200 {
		t.Errorf("%d %+v", code, health)
	}
	var done Done
	if code := follower.call(http.MethodPost, "/v1/leader",
		[]byte(`{"to":"`+peer.NodeName(follower.node.ID())+`"}`), &done); code != 200 ||
		!done.Done {
		t.Fatal(code)
	}
	testwait.Within(t, 10*time.Second, "the follower leads",
		func() bool { return follower.node.Status().Serving })
	// The node that leads now is demoted by way of the old leader. It transfers leadership first.
	name := peer.NodeName(follower.node.ID())
	var answer any
	if code := leader.call(http.MethodPost, "/v1/members/"+name+"/demote", nil,
		&answer); code != 200 {
		t.Fatalf("demote the leader: %d %v", code, answer)
	}
	if leader.call(http.MethodGet, "/v1/members", nil, &list); len(list) != 3 {
		t.Error(list)
	}
	for _, m := range list {
		if m.Node == name && m.Voter {
			t.Error("it still votes")
		}
	}
	var failure Error
	for path, body := range map[string]string{
		"/v1/members": `{"address":"nowhere","voter":true}`,
		"/v1/leader":  `{"to":"nobody"}`,
	} {
		t.Run(path, func(t *testing.T) {
			if code := follower.call(http.MethodPost, path, []byte(body), &failure); code != 409 &&
				code != 503 || failure.Outcome != "not done" {
				t.Errorf("%s %s: %d %+v", path, body, code, failure)
			}
		})
	}
	if code := follower.call(http.MethodPost, "/v1/leader", []byte(`{"two":"n1"}`),
		&failure); code != 400 {
		t.Errorf("an unknown field: %d", code)
	}
}

func TestAnyNodeTakesAndRestoresSnapshots(t *testing.T) {
	leader, follower := startAPIs(t)
	leader.set("k", "saved")
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, follower.url+
		"/v1/snapshot", nil)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if _, checked := fsm.Inspect(bytes.NewReader(saved)); err != nil || checked != nil {
		t.Fatal(err, checked)
	}
	leader.set("k", "later")
	var done Done
	if code := follower.call(http.MethodPut, "/v1/snapshot", saved, &done); code != 200 {
		t.Fatal(code)
	}
	var key Key
	if follower.call(http.MethodGet, "/v1/key?key=k", nil, &key); key.Value.Text != "saved" {
		t.Errorf("%+v", key)
	}
	var failure Error
	if code := follower.call(http.MethodPut, "/v1/snapshot", saved[:len(saved)-1],
		&failure); code != 409 || failure.Outcome != "not done" {
		t.Errorf("%d %+v", code, failure)
	}
	var status Status
	if code := follower.call(http.MethodPost, "/v1/snapshot/take", nil, &status); code != 200 ||
		status.Node != peer.NodeName(follower.node.ID()) {
		t.Errorf("%d %+v", code, status)
	}
}

// A leader that has lost its majority may not know the latest watches. So it refuses to end
// watches, and does not answer that there were none.
func TestWatchesAreEndedByAConfirmedLeader(t *testing.T) {
	leader, _ := startAPIs(t)
	if code := leader.call(http.MethodDelete, "/v1/watches?client=c", nil, nil); code != 200 {
		t.Errorf("with a majority it answers %d", code)
	}
	ended, end := context.WithCancel(t.Context())
	end() // so that Close does not wait
	for _, node := range leader.nodes {
		if node != leader.node {
			_ = node.Close(ended)
		}
	}
	var failure Error
	if code := leader.call(http.MethodDelete, "/v1/watches?client=c", nil, &failure); code == 200 ||
		failure.Outcome != "not done" {
		t.Errorf("answers %d %+v", code, failure)
	}
}

// A web page of another site cannot operate the cluster of the person who looks at it.
func TestOtherSitesAreRefused(t *testing.T) {
	leader, _ := startAPIs(t)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, leader.url+"/v1/leader",
		strings.NewReader(`{}`))
	request.Header.Set("Origin", "https://evil.example")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Error(response.Status)
	}
}

// Reads of another site's page are refused, too. A link may lead to the status page, and nothing is
// stored.
func TestReadsOfOtherSitesAreRefused(t *testing.T) {
	leader, _ := startAPIs(t)
	for name, test := range map[string]struct {
		header map[string]string
		want   int
	}{
		"a command line": {nil, http.StatusOK},
		"the page itself": {map[string]string{
			"Sec-Fetch-Site": "same-origin",
			"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty",
		}, http.StatusOK},
		"a bookmark": {map[string]string{
			"Sec-Fetch-Site": "none",
			"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document",
		}, http.StatusOK},
		"a link on another site": {map[string]string{
			"Sec-Fetch-Site": "cross-site",
			"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document",
		}, http.StatusOK},
		"a script of another site": {map[string]string{
			"Sec-Fetch-Site": "cross-site",
			"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty",
		}, http.StatusForbidden},
		"an image of another site": {map[string]string{
			"Sec-Fetch-Site": "cross-site",
			"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image",
		}, http.StatusForbidden},
		"a frame of another site": {map[string]string{
			"Sec-Fetch-Site": "cross-site",
			"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe",
		}, http.StatusForbidden},
		"a script on another port": {map[string]string{
			"Sec-Fetch-Site": "same-site",
			"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty",
		}, http.StatusForbidden},
		"an older browser": {
			map[string]string{"Origin": "https://evil.example"},
			http.StatusForbidden,
		},
		"an older browser's own script": {map[string]string{"Origin": leader.url}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, leader.url+
				"/v1/status", nil)
			for key, value := range test.header {
				request.Header.Set(key, value)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != test.want ||
				response.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s, %q", response.Status, response.Header.Get("Cache-Control"))
			}
		})
	}
}

// The outcome in an error is "not done" only if it is certain that nothing was done.
func TestErrorIsNotDoneOnlyIfThatIsCertain(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"it waited for its turn": {fmt.Errorf("%w: another change is under way: %w",
			peer.ErrNotDone, context.DeadlineExceeded), "not done"},
		"the time was over":   {context.DeadlineExceeded, "unknown"},
		"the client has gone": {context.Canceled, "unknown"},
		"a transfer that may still happen": {fmt.Errorf("transfer: %w: %w",
			peer.ErrOutcomeUnknown, errors.New("timeout")), "unknown"},
		"refused, although it took too long": {fmt.Errorf("%w: %w", peer.ErrRefused,
			context.DeadlineExceeded), "not done"},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			(&admin{}).fail(recorder, test.err)
			var answer Error
			if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil ||
				answer.Outcome != test.want {
				t.Errorf("%s, %v", recorder.Body, err)
			}
		})
	}
}

// A body is one JSON value, or empty.
func TestBodyIsOneValue(t *testing.T) {
	for body, ok := range map[string]bool{
		"": true, `{"to":"a"}`: true, "{\"to\":\"a\"} \n": true,
		`{"to":"a"}{"to":"b"}`: false, `{"other":1}`: false, `{`: false,
	} {
		t.Run(body, func(t *testing.T) {
			var value struct {
				To string `json:"to"`
			}
			err := readJSON(httptest.NewRecorder(),
				httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), &value)
			if (err == nil) != ok {
				t.Errorf("%q: %v", body, err)
			}
		})
	}
}

// The cluster is healthy only if clients are served: Raft may be well while the broker is away.
func TestHealthyMeansServed(t *testing.T) {
	leader, _ := startAPIs(t)
	for name, test := range map[string]struct {
		fault error
		ready string
	}{"served": {nil, "ok"}, "without a broker": {
		errors.New("broker session: down"),
		"broker session: down",
	}} {
		t.Run(name, func(t *testing.T) {
			handler := Admin(AdminConfig{
				Name: "n", Node: leader.node, Ready: func() error { return test.fault },
				Notes: func() []string { return nil },
				Log:   slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
				Mirrors: leader.mirrors,
			})
			var health cluster.Health
			testwait.Until(t, "autopilot has a state", func() bool {
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder,
					httptest.NewRequestWithContext(t.Context(), http.MethodGet,
						"http://127.0.0.1/v1/autopilot", nil))
				return json.Unmarshal(recorder.Body.Bytes(), &health) == nil &&
					len(health.Members) == 3 && (test.fault != nil || health.Healthy)
			})
			if health.Healthy != (test.fault == nil) || health.Ready != test.ready {
				t.Errorf("healthy %t, ready %q", health.Healthy, health.Ready)
			}
		})
	}
}
