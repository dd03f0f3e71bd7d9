package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/testwait"
)

// acknowledged records what the server has acknowledged. It belongs to the test, which outlives the
// killed server.
type acknowledged struct {
	mu       sync.Mutex
	values   map[string]int // the last value of each key whose SET was answered
	versions map[string]string
	seen     map[string]bool // every version that was ever given
	sets     int
}

func (a *acknowledged) record(t *testing.T, key string, value int, version string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen[version] {
		t.Errorf("the version %s was given twice", version)
	}
	a.seen[version] = true
	a.values[key], a.versions[key] = value, version
	a.sets++
}

// kills is how often the server is killed with the log store wal. With boltdb it is half as often.
const kills = 100

// A server that is killed at random moments under load, a hundred times, loses nothing that it
// acknowledged: no value, version, fencing token or time to live. It never gives a version twice.
// No request fails, because the broker keeps the requests that were not answered.
func TestKilledNodesLoseNothingAnswered(t *testing.T) {
	t.Parallel() // it mostly waits
	t.Run("wal", func(t *testing.T) { testKill(t, "wal", kills) })
	t.Run("boltdb", func(t *testing.T) { testKill(t, "boltdb", kills/2) })
}

func testKill(t *testing.T, logStore string, count int) {
	t.Parallel()
	broker := startMosquitto(t)
	s := newServer(t, "mqtt://"+broker.address, t.TempDir(), "--log.level", "warn",
		"--cluster.logStore", logStore)
	s.waitReady(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store := connectClient(t, broker.address)
	token, _ := client.ParseVersion("1000:0:StateStore")
	lock, err := store.Set(ctx, "lock", []byte("holder"), client.Expire(10*time.Minute),
		client.Fence(token))
	if err != nil {
		t.Fatal(err)
	}
	acks := &acknowledged{
		values: map[string]int{}, versions: map[string]string{},
		seen: map[string]bool{lock.String(): true},
	}
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			key := fmt.Sprint("key", i)
			for value := 1; ctx.Err() == nil; value++ {
				version, err := store.Set(ctx, key, []byte(strconv.Itoa(value)))
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					t.Errorf("%s = %d: %v", key, value, err)
					return
				}
				acks.record(t, key, value, version.String())
			}
		})
	}
	for range count {
		s.waitReady(t)
		<-time.After(time.Duration(rand.IntN(60)) * time.Millisecond)
		s.kill()
		s.start(t)
	}
	s.waitReady(t)
	cancel()
	writers.Wait()
	t.Logf("%d SETs were acknowledged over %d kills", acks.sets, count)
	s.kill()
	s.start(t)
	s.waitReady(t)
	checkAcknowledged(t, store, acks)

	// The lock has its version and its token. Below, a key with a time to live expires although the
	// server was killed meanwhile.
	value, version, err := store.Get(t.Context(), "lock")
	if string(value) != "holder" || version != lock || err != nil {
		t.Errorf("lock: %q %v, %v; want the version %v", value, version, err, lock)
	}
	if _, err := store.Set(t.Context(), "lock", nil); !errors.Is(err,
		client.ErrFencingTokenRequired) {
		t.Errorf("the token was lost: %v", err)
	}
	if _, err := store.Set(t.Context(), "short", nil,
		client.Expire(300*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	s.kill()
	s.start(t)
	s.waitReady(t)
	testwait.Until(t, "a key expires after a restart", func() bool {
		_, _, err := store.Get(t.Context(), "short")
		return errors.Is(err, client.ErrNotFound)
	})
}

func connectClient(t *testing.T, address string) *client.Client {
	t.Helper()
	store, err := client.Connect(t.Context(),
		client.Config{Addresses: []string{address}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func checkAcknowledged(t *testing.T, store *client.Client, acks *acknowledged) {
	t.Helper()
	acks.mu.Lock()
	defer acks.mu.Unlock()
	for key, want := range acks.values {
		value, version, err := store.Get(t.Context(), key)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		got, _ := strconv.Atoi(string(value))
		switch {
		case got < want || got > want+1: // the next SET may have been under way
			t.Errorf("%s is %d, but %d was acknowledged", key, got, want)
		case got == want && version.String() != acks.versions[key]:
			t.Errorf("%s has the version %v, but %s was acknowledged", key, version,
				acks.versions[key])
		}
	}
}

// After a restart of the broker under load, requests, locks and watches go on by themselves, and
// nothing that was acknowledged is lost. A watcher learns that it may have missed changes.
func TestBrokerRestartUnderLoadLosesNothing(t *testing.T) {
	broker := startMosquitto(t)
	newServer(t, "mqtt://"+broker.address, t.TempDir()).waitReady(t)
	store := connectClient(t, broker.address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watcher, err := store.Watch(ctx, "key0")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := store.Lock(ctx, "lock", 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	acks := &acknowledged{
		values: map[string]int{}, versions: map[string]string{},
		seen: map[string]bool{},
	}
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for value := 1; ctx.Err() == nil; value++ {
				key := fmt.Sprint("key", i)
				version, err := store.Set(ctx, key, []byte(strconv.Itoa(value)))
				if err == nil {
					acks.record(t, key, value, version.String())
				} else if ctx.Err() == nil {
					t.Errorf("%s = %d: %v", key, value, err)
					return
				}
			}
		})
	}
	progress := func() int {
		acks.mu.Lock()
		defer acks.mu.Unlock()
		return acks.sets
	}
	for range 3 {
		before := progress()
		testwait.Until(t, "writes go on", func() bool { return progress() > before+20 })
		broker.kill()
		broker.start(t)
	}
	before := progress()
	testwait.Until(t, "writes go on after the last restart",
		func() bool { return progress() > before+20 })
	cancel()
	writers.Wait()
	checkAcknowledged(t, store, acks)
	select {
	case <-lock.Lost():
		t.Error("the lock was lost")
	default:
	}
	gaps := 0
	for len(watcher.Events()) > 0 {
		if event := <-watcher.Events(); event.Kind == client.EventGap {
			gaps++
		}
	}
	if gaps == 0 {
		t.Error("the watcher was not told that it may have missed changes")
	}
	if _, err := store.Set(t.Context(), "key0", []byte("after")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the watch goes on", func() bool {
		select {
		case event := <-watcher.Events():
			return string(event.Value) == "after"
		case <-time.After(time.Second):
			return false
		}
	})
}

// SIGTERM stops a server within seconds, also if its broker is down. Requests that were under way
// are answered, by this process or by the next.
func TestStopAnswersWhatIsUnderWay(t *testing.T) {
	broker := startMosquitto(t)
	dir := t.TempDir()
	s := newServer(t, "mqtt://"+broker.address, dir)
	s.waitReady(t)
	store := connectClient(t, broker.address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writers sync.WaitGroup
	for i := range 16 {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := store.Set(ctx, fmt.Sprint(i), []byte(strconv.Itoa(n))); err != nil &&
					ctx.Err() == nil {
					t.Errorf("a request failed over a restart: %v", err)
					return
				}
			}
		})
	}
	for range 3 {
		if code, took := s.stop(); code != 0 || took > 5*time.Second {
			t.Errorf("stopped with code %d after %v", code, took)
		}
		s.start(t)
		s.waitReady(t)
	}
	cancel()
	writers.Wait()
	broker.kill()
	if code, took := s.stop(); code != 0 || took > 14*time.Second {
		t.Errorf("without a broker: stopped with code %d after %v", code, took)
	}
}

// A snapshot on demand can be inspected, and a damaged one is refused.
func TestSnapshotIsInspectedAndADamagedOneRefused(t *testing.T) {
	broker := startMosquitto(t)
	dir := t.TempDir()
	s := newServer(t, "mqtt://"+broker.address, dir)
	s.waitReady(t)
	store := connectClient(t, broker.address)
	for i := range 100 {
		if _, err := store.Set(t.Context(), fmt.Sprint("k", i), []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	file := t.TempDir() + "/backup.snap"
	admin := "http://" + s.admin
	if out, code := holdfast(t, broker.address, "", "raft", "snapshot", "save", file, "--admin",
		admin); code != 0 {
		t.Fatal(out)
	}
	if out, code := holdfast(t, broker.address, "", "raft", "snapshot", "inspect", file, "-o",
		"json"); code != 0 || !strings.Contains(out, `"keys":100`) {
		t.Errorf("code %d: %s", code, out)
	}
	if out, code := holdfast(t, broker.address, "", "raft", "snapshot", "take", "--admin",
		admin); code != 0 {
		t.Error(out)
	}
	s.kill()
	s.start(t) // from the snapshot
	s.waitReady(t)
	if value, _, err := store.Get(t.Context(), "k99"); string(value) != "v" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
	flip(t, file)
	if _, code := holdfast(t, broker.address, "", "raft", "snapshot", "inspect", file); code != 3 {
		t.Errorf("a damaged snapshot: code %d", code)
	}
	if out, code := holdfast(t, broker.address, "", "status", "--admin", admin); code != 0 ||
		!strings.Contains(out, "leader") {
		t.Errorf("status: code %d: %s", code, out)
	}
}
