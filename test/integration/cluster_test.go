package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/testwait"
)

// members are the processes of one cluster.
type members []*server

// memberInfo is what the admin API says of a member.
type memberInfo struct {
	Node           string `json:"node"`
	ID             string `json:"id"`
	Address        string `json:"address"`
	State          string `json:"state"`
	Voter          bool   `json:"voter"`
	CommitIndex    uint64 `json:"commitIndex"`
	TrailsLeaderBy uint64 `json:"trailsLeaderBy"`
}

// newMember prepares a process of a cluster, and does not start it. address is where the other
// members reach it; peers is the value of --cluster.peers.
func newMember(t testing.TB, id, broker, address, peers string, extra ...string) *server {
	t.Helper()
	s := &server{
		health: fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		admin:  fmt.Sprintf("127.0.0.1:%d", freePort(t)), id: id, peer: address,
	}
	s.dataDir = filepath.Join(t.TempDir(), id)
	s.arguments = append([]string{
		"server", "--node.id", id, "--node.dataDir", s.dataDir, "--broker.addresses", broker,
		"--health.listen", s.health,
		"--admin.listen", s.admin, "--cluster.listen", address, "--cluster.advertise", address,
		"--cluster.peers", peers,
	}, extra...)
	if !slices.ContainsFunc(extra,
		func(a string) bool { return strings.HasPrefix(a, "--cluster.tls") }) {
		s.arguments = append(s.arguments, "--cluster.tls.insecure")
	}
	return s
}

// prepareMembers prepares the processes of a cluster.
func prepareMembers(t testing.TB, size int, broker string, extra ...string) (list members) {
	t.Helper()
	var peers []string
	addresses := make([]string, size)
	for i := range size {
		addresses[i] = fmt.Sprintf("127.0.0.1:%d", freePort(t))
		peers = append(peers, fmt.Sprintf("n%d=%s", i+1, addresses[i]))
	}
	for i := range size {
		list = append(list, newMember(t, fmt.Sprintf("n%d", i+1), broker, addresses[i],
			strings.Join(peers, ","), extra...))
	}
	return list
}

// startMembers starts a cluster of several processes and waits until it serves.
func startMembers(t testing.TB, size int, broker string, extra ...string) members {
	t.Helper()
	list := prepareMembers(t, size, broker, extra...)
	for _, s := range list {
		s.start(t)
	}
	list.waitReady(t)
	return list
}

func (m members) waitReady(t testing.TB) {
	t.Helper()
	for _, s := range m {
		s.waitReady(t)
	}
}

// api calls a member's admin API.
func (s *server) api(method, path string, body io.Reader, into any) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+s.admin+path, body)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if into == nil {
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, err
	}
	return response.StatusCode, json.NewDecoder(response.Body).Decode(into)
}

// running returns the members whose processes run.
func (m members) running() (list members) {
	for _, s := range m {
		select {
		case <-s.exited:
		default:
			list = append(list, s)
		}
	}
	return list
}

// leader returns the member that leads, according to the first running member that answers.
func (m members) leader(t testing.TB) *server {
	t.Helper()
	var found *server
	testwait.Until(t, "somebody leads", func() bool {
		for _, asked := range m.running() {
			var list []memberInfo
			if code, err := asked.api(http.MethodGet, "/v1/members", nil, &list); err != nil ||
				code != http.StatusOK {
				continue
			}
			for _, member := range list {
				for _, s := range m {
					if member.State == "leader" && member.Node == s.id {
						found = s
						return true
					}
				}
			}
		}
		return false
	})
	return found
}

func (m members) other(not *server) *server {
	for _, s := range m.running() {
		if s != not {
			return s
		}
	}
	return nil
}

func (s *server) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := s.command.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// load is a steady load: each client sets a new key, and reads it. No request may fail.
type load struct {
	t       testing.TB
	cancel  context.CancelFunc
	clients []*client.Client
	working sync.WaitGroup

	mu       sync.Mutex
	delays   []sample
	versions map[string]string
}

type sample struct {
	began time.Time
	took  time.Duration
}

// startLoad makes clients, each of which sends a SET, waits for its answer, reads it back, and
// pauses.
func startLoad(t testing.TB, broker string, clients int, pause time.Duration) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, cancel: cancel, versions: make(map[string]string)}
	for i := range clients {
		c, err := client.Connect(ctx,
			client.Config{
				Addresses: []string{broker},
				ClientID:  fmt.Sprintf("load-%d-%d", time.Now().UnixNano(), i),
				Timeout:   10 * time.Second,
			})
		if err != nil {
			t.Fatal(err)
		}
		l.clients = append(l.clients, c)
		l.working.Go(func() { l.run(ctx, c, i, pause) })
	}
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *load) run(ctx context.Context, c *client.Client, number int, pause time.Duration) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("load/%d/%d", number, n)
		began := time.Now()
		version, err := c.Set(context.WithoutCancel(ctx), key, []byte(key), client.IfAbsent())
		if err != nil {
			l.t.Errorf("SET %s failed after %v: %v", key, time.Since(began), err)
			return
		}
		l.record(began)
		l.mu.Lock()
		l.versions[key] = version.String()
		l.mu.Unlock()
		began = time.Now()
		value, read, err := c.Get(context.WithoutCancel(ctx), key)
		if err != nil || string(value) != key || read != version {
			l.t.Errorf("GET %s after %v: %q %v %v; want version %v", key, time.Since(began), value,
				read, err, version)
			return
		}
		l.record(began)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (l *load) record(began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delays = append(l.delays, sample{began, time.Since(began)})
}

func (l *load) stop() {
	l.cancel()
	l.working.Wait()
	for _, c := range l.clients {
		_ = c.Close() // all is answered
	}
	l.clients = nil
}

// progress waits until "more" further requests were answered.
func (l *load) progress(more int) {
	l.t.Helper()
	l.mu.Lock()
	want := len(l.delays) + more
	l.mu.Unlock()
	testwait.Until(l.t, "requests are answered", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.delays) >= want
	})
}

// delaysAround returns the delays of the answered requests that were under way between two moments,
// ascending.
func (l *load) delaysAround(from, to time.Time) (delays []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.delays {
		if s.began.Add(s.took).After(from) && s.began.Before(to) {
			delays = append(delays, s.took)
		}
	}
	slices.Sort(delays)
	return delays
}

// check reads every key once more. It must have the version with which its SET was acknowledged:
// then the SET was applied exactly once.
func (l *load) check(t testing.TB, broker string) {
	t.Helper()
	store, err := client.Connect(context.Background(),
		client.Config{Addresses: []string{broker}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	l.mu.Lock()
	defer l.mu.Unlock()
	var checking sync.WaitGroup
	slots := make(chan struct{}, 64)
	for key, want := range l.versions {
		slots <- struct{}{}
		checking.Go(func() {
			defer func() { <-slots }()
			_, version, err := store.Get(context.Background(), key)
			if err != nil || version.String() != want {
				t.Errorf("%s: version %v, %v; %s was acknowledged", key, version, err, want)
			}
		})
	}
	checking.Wait()
}

// percentile returns the value below which the share of the ascending values lies.
func percentile(values []time.Duration, share float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	return values[min(int(share*float64(len(values))), len(values)-1)]
}
