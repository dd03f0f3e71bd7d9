package integration

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
)

// keysForFigures returns the number of keys for measurements, from HOLDFAST_FIGURES. If it is not
// set, the test is skipped: `make figures` sets it.
func keysForFigures(t *testing.T) int {
	t.Helper()
	text := os.Getenv("HOLDFAST_FIGURES")
	if text == "" {
		t.Skip("HOLDFAST_FIGURES is not set: make figures")
	}
	keys, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// fill writes keys of 20 bytes with values of 100 bytes.
func fill(t *testing.T, broker string, keys int) {
	t.Helper()
	const clients, outstanding = 4, 64
	value := make([]byte, 100)
	var writing sync.WaitGroup
	for c := range clients {
		store, err := client.Connect(t.Context(),
			client.Config{Addresses: []string{broker}, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close() }()
		for o := range outstanding {
			writing.Go(func() {
				for n := c*outstanding + o; n < keys; n += clients * outstanding {
					if _, err := store.Set(t.Context(), fmt.Sprintf("key-%016d", n),
						value); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	writing.Wait()
}

// patiently is eventually with a limit of 5 minutes. It returns how long it took.
func patiently(t *testing.T, what string, condition func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !condition() {
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("did not happen: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
	return time.Since(began)
}

// TestFiguresNodeWithManyKeys measures how long a node with many keys takes to start, and a wiped
// node to vote again, and the latency of requests meanwhile. It has no bounds.
func TestFiguresNodeWithManyKeys(t *testing.T) {
	keys := keysForFigures(t)
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	began := time.Now()
	fill(t, broker.address, keys)
	t.Logf("%d keys written in %v (%.0f/s)", keys, time.Since(began).Round(time.Second),
		float64(keys)/time.Since(began).Seconds())
	node := m.other(m.leader(t))
	ready := func() bool { return httpStatus("http://"+node.health+"/readyz") == http.StatusOK }
	node.kill()
	node.start(t)
	t.Logf("a node that was killed is ready after %v",
		patiently(t, "ready", ready).Round(time.Millisecond))
	if out, code := node.operate(t, "raft", "snapshot", "take"); code != 0 {
		t.Fatal(out)
	}
	node.kill()
	node.start(t)
	t.Logf("a node with a fresh snapshot is ready after %v",
		patiently(t, "ready", ready).Round(time.Millisecond))

	l := startLoad(t, broker.address, 16, 10*time.Millisecond)
	l.progress(500)
	calm := l.delaysAround(time.Now().Add(-time.Second), time.Now())
	node.kill()
	node.wipe(t)
	began = time.Now()
	node.start(t)
	patiently(t, "ready", ready)
	back := time.Since(began)
	m.awaitAgreement(t, 3)
	during := l.delaysAround(began, time.Now())
	t.Logf("a wiped node is ready after %v, votes after %v; requests before: p50 %v p99 %v, meanwhile: p50 %v p99 %v, latest %v",
		back.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), rounded(calm, 0.5),
		rounded(calm, 0.99),
		rounded(during, 0.5), rounded(during, 0.99), rounded(during, 1))
	l.stop()
	for _, s := range m {
		t.Logf("%s: %d MiB", s.id, s.rss(t)>>20)
	}
}

// TestFiguresThroughput measures the requests per second with one node and with three, in turn. It
// has no bounds.
func TestFiguresThroughput(t *testing.T) {
	keysForFigures(t)
	for round := range 3 {
		for _, size := range []int{1, 3} {
			broker := startMosquitto(t)
			m := startMembers(t, size, "mqtt://"+broker.address, "--log.level", "warn")
			for _, outstanding := range []string{"64", "256"} {
				for _, ratio := range []string{"0:100", "100:0"} {
					out, code := holdfast(t, broker.address, "", "bench", "--outstanding",
						outstanding, "--ratio", ratio, "--duration", "4s")
					if code != 0 {
						t.Fatal(out)
					}
					line, _, _ := strings.Cut(out, "\n")
					t.Logf("round %d: %d nodes, GET:SET %s, %s outstanding: %s", round+1, size,
						ratio, outstanding, line)
				}
			}
			for _, s := range m {
				s.kill()
			}
			broker.kill()
		}
	}
}
