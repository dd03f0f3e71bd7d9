package httpapi

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/mirror"
)

// fakeMirrors publishes nothing. Its status is what a test says.
type fakeMirrors struct {
	mu      sync.Mutex
	status  mirror.Status
	resyncs int
}

func (f *fakeMirrors) Status() mirror.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *fakeMirrors) Resync() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resyncs++
	return f.status.Leading
}

func (f *fakeMirrors) set(status mirror.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = status
}

// Any node answers with the leader's status of the mirrors (settings by which the leader publishes
// keys as retained messages). Without mirrors, InSync is true.
func TestMirrorsAreShownAsTheLeaderKnowsThem(t *testing.T) {
	leader, follower := startAPIs(t)
	follower.mirrors.set(mirror.Status{Fault: "of a node that does not lead"})
	leader.mirrors.set(mirror.Status{Leading: true, Comparing: true})
	var none Mirrors
	if code := follower.call(http.MethodGet, "/v1/mirrors", nil, &none); code != 200 ||
		!none.InSync || len(none.Mirrors) != 0 {
		t.Errorf("%d, %+v", code, none)
	}
	settings := fsm.DefaultSettings()
	settings.Mirrors = []fsm.Mirror{{Keys: "a*", Topic: "t/"}}
	leader.execute(fsm.Command{Kind: fsm.KindConfigure, Settings: &settings})
	leader.mirrors.set(mirror.Status{
		Leading: true, Connected: true, Keys: 5, Missing: 1, Stale: 2,
		Topics: 3, Refused: 2, Lag: 4 * time.Second,
	})
	var got Mirrors
	code := follower.call(http.MethodGet, "/v1/mirrors", nil, &got)
	if code != 200 || len(got.Mirrors) != 1 || got.Mirrors[0] != (Mirror{"a*", "t/"}) ||
		got.InSync || !got.Connected || got.Keys != 5 || got.Missing != 1 || got.Stale != 2 ||
		got.LagTopics != 3 || got.Refused != 2 || got.Lag != 4000 || got.Fault != "" {
		t.Errorf("%d, %+v", code, got)
	}
	if code := follower.call(http.MethodPost, "/v1/mirrors/resync", nil, nil); code != 200 ||
		leader.mirrors.resyncs != 1 || follower.mirrors.resyncs != 0 {
		t.Errorf("%d; %d and %d resyncs", code, leader.mirrors.resyncs, follower.mirrors.resyncs)
	}
}

// A leader whose front end (its MQTT side) does not serve yet, or no longer serves, knows no status
// of the mirrors. It answers with status 503.
func TestMirrorsOfALeaderThatDoesNotServe(t *testing.T) {
	leader, _ := startAPIs(t)
	for method, path := range map[string]string{
		http.MethodGet:  "/v1/mirrors",
		http.MethodPost: "/v1/mirrors/resync",
	} {
		t.Run(method, func(t *testing.T) {
			if code := leader.call(method, path, nil, nil); code != http.StatusServiceUnavailable {
				t.Errorf("%s %s: %d", method, path, code)
			}
		})
	}
}
