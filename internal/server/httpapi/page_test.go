package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/policy"
	"holdfast/internal/testwait"
)

// stream opens the event stream of the status page.
func (a *api) stream(ctx context.Context, query string) *http.Response {
	a.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/ui/events"+query,
		http.NoBody)
	if err != nil {
		a.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// next reads the next PageData event.
func next(t *testing.T, stream *bufio.Reader) (p PageData) {
	t.Helper()
	for {
		line, err := stream.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &p); err != nil {
				t.Fatal(err)
			}
			return p
		}
	}
}

// Any node shows all members, and what the leader knows of keys, locks and watches.
func TestAnyNodeShowsTheCluster(t *testing.T) {
	leader, follower := startAPIs(t)
	for _, command := range []fsm.Command{
		{
			Kind: fsm.KindSet, Key: []byte("a/1"), Value: []byte("v"),
			Timestamp: hlc.Timestamp{Wall: 1, NodeID: "c"},
		},
		{
			Kind: fsm.KindSet, Key: []byte("a/lock"), Value: []byte("holder"), TTL: 60_000,
			Timestamp: hlc.Timestamp{Wall: 1, NodeID: "c"},
		},
		{
			Kind: fsm.KindSet, Key: []byte("b"), Value: []byte("v"),
			Timestamp: hlc.Timestamp{Wall: 1, NodeID: "c"},
		},
		{Kind: fsm.KindKeyNotify, Key: []byte("a/1")},
	} {
		leader.execute(command)
	}
	for _, node := range []*api{leader, follower} {
		stream := bufio.NewReader(node.stream(t.Context(), "?prefix=a%2F").Body)
		for range 2 {
			p := next(t, stream)
			if len(p.Members) != 3 || len(p.Activities) != 3 || p.Leader == "" ||
				p.Overview == nil {
				t.Fatalf("%+v", p)
			}
			o := p.Overview
			if len(o.Keys) != 2 || len(o.Locks) != 1 || o.Locks[0].Value.Text != "holder" ||
				len(o.Watches) != 1 || o.Watches[0].Client != "c" || o.More {
				t.Errorf("%+v", o)
			}
		}
	}
}

// At most maxStreams pages may be open at a time. Pages that are closed free their slots.
func TestStreamsAreBounded(t *testing.T) {
	leader, _ := startAPIs(t)
	ctx, closePages := context.WithCancel(t.Context())
	for range maxStreams {
		if response := leader.stream(ctx, ""); response.StatusCode != http.StatusOK {
			t.Fatal(response.Status)
		}
	}
	if response := leader.stream(t.Context(),
		""); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one page too many: %s", response.Status)
	}
	if response := leader.stream(t.Context(),
		"?x=1"); response.StatusCode != http.StatusBadRequest {
		t.Errorf("a parameter that does not exist: %s", response.Status)
	}
	closePages()
	testwait.Within(t, 10*time.Second, "pages that were closed make room",
		func() bool { return leader.stream(t.Context(), "").StatusCode == http.StatusOK })
}

// A server that stops does not wait for the pages that are open.
func TestStopEndsStreams(t *testing.T) {
	began := make(chan struct{})
	listening := httptest.NewUnstartedServer(nil).Listener
	server := Serve(listening, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-stopping(r.Context())
		_, _ = io.WriteString(w, "ended")
	}), slog.New(slog.DiscardHandler))
	answer := make(chan string, 1)
	go func() {
		response, err := http.Get("http://" + server.Address())
		if err != nil {
			answer <- err.Error()
			return
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		answer <- string(body)
	}()
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := server.Close(ctx); err != nil {
		t.Error(err)
	}
	if got := <-answer; got != "ended" {
		t.Errorf("%q", got)
	}
}

// GET / returns the status page. The page, its script and its style sheet have a
// Content-Security-Policy that forbids content from elsewhere.
func TestPageAllowsNothingFromElsewhere(t *testing.T) {
	leader, _ := startAPIs(t)
	for path, kind := range map[string]string{
		"/": "text/html", "/ui/": "text/html",
		"/ui/page.js": "text/javascript", "/ui/page.css": "text/css",
	} {
		t.Run(path, func(t *testing.T) {
			response, err := http.Get(leader.url + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK ||
				!strings.HasPrefix(response.Header.Get("Content-Type"), kind) ||
				!strings.Contains(response.Header.Get("Content-Security-Policy"),
					"default-src 'none'") {
				t.Errorf("%s %v", response.Status, response.Header)
			}
		})
	}
}

// Local refuses a Host header that is neither localhost nor an IP address: a web page whose host
// name resolves to this machine (DNS rebinding).
func TestLocalRefusesForeignHostHeaders(t *testing.T) {
	handler := Local(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request,
	) {
		w.WriteHeader(http.StatusNoContent)
	}))
	for host, code := range map[string]int{
		"127.0.0.1:7401": http.StatusNoContent, "localhost:7401": http.StatusNoContent,
		"[::1]:7401": http.StatusNoContent, "[::1]": http.StatusNoContent,
		"evil.example":           http.StatusMisdirectedRequest,
		"evil.example:7401":      http.StatusMisdirectedRequest,
		"127.0.0.1.evil.example": http.StatusMisdirectedRequest,
	} {
		t.Run(host, func(t *testing.T) {
			request := httptest.NewRequest(http.MethodGet, "/v1/status", http.NoBody)
			request.Host = host
			recorder := httptest.NewRecorder()
			if handler.ServeHTTP(recorder, request); recorder.Code != code {
				t.Errorf("%d", recorder.Code)
			}
		})
	}
}

// The size of an overview is bounded, however long the keys are and however many clients watch
// them.
func TestOverviewIsBounded(t *testing.T) {
	leader, _ := startAPIs(t)
	for i := range 20 {
		key := strings.Repeat(string(rune('a'+i)), 30_000)
		leader.execute(fsm.Command{
			Kind: fsm.KindSet, Key: []byte(key), Value: []byte("v"),
			TTL: 600_000, Timestamp: hlc.Timestamp{Wall: 1, NodeID: "c"},
		})
	}
	leader.set("A", "v")
	for i := range 30 {
		watch := fsm.Command{
			Kind: fsm.KindKeyNotify, Key: []byte("A"),
			Principal: policy.Principal{ClientID: fmt.Sprint("watcher-", i)},
		}
		if _, err := leader.node.Execute(t.Context(), watch); err != nil {
			t.Fatal(err)
		}
	}
	var overview Overview
	leader.call(http.MethodGet, "/v1/overview", nil, &overview)
	encoded, err := json.Marshal(overview)
	if len(overview.Keys) == 0 { // "A" sorts first
		t.Fatal("no keys")
	}
	if most := 1 << 20; err != nil || len(encoded) > most || !overview.More ||
		len(overview.Keys[0].Watchers) != overviewWatchers+1 {
		t.Errorf("%d bytes, %d keys, the first with %d watchers, more: %v, %v", len(encoded),
			len(overview.Keys), len(overview.Keys[0].Watchers), overview.More, err)
	}
}
