package integration

import (
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// repetitions returns how often each failure is repeated, and the factor by which the bounds on
// latency are multiplied. HOLDFAST_REPEAT sets the count for measurements on an idle machine, with
// the factor 1. Without it, other tests run at the same time: there are two rounds and wider
// bounds.
func repetitions(t testing.TB) (count int, slack time.Duration) {
	t.Helper()
	text := os.Getenv("HOLDFAST_REPEAT")
	if text == "" {
		return 2, 4
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return count, 1
}

// failureClients is the number of clients under whose load the failures happen.
const failureClients = 64

// failure is something that happens to a member, and how late requests may be because of it.
type failure struct {
	name string
	// makes it happen, and returns when all members are ready again
	strike func(t *testing.T, m members)
	most   time.Duration // bounds the latency of each request around the failure
	p99    time.Duration // bounds the 99th percentile of the same requests
}

func killLeader(t *testing.T, m members) {
	leader := m.leader(t)
	leader.kill()
	<-time.After(1500 * time.Millisecond) // long enough for an election
	leader.start(t)
	m.waitReady(t)
}

func stopLeader(t *testing.T, m members) {
	leader := m.leader(t)
	if code, _ := leader.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	leader.start(t)
	m.waitReady(t)
}

// No request fails when a member, even the leader, is killed, stopped or paused: requests are only
// late. Each takes effect once.
func TestFailoverFailsNoRequest(t *testing.T) {
	for _, f := range []failure{
		{"kill", killLeader, 2500 * time.Millisecond, 1500 * time.Millisecond},
		{"terminate", stopLeader, 250 * time.Millisecond, 250 * time.Millisecond},
		{"terminate a follower", func(t *testing.T, m members) {
			follower := m.other(m.leader(t))
			if code, _ := follower.stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			follower.start(t)
			m.waitReady(t)
		}, 250 * time.Millisecond, 250 * time.Millisecond},
		{"pause", func(t *testing.T, m members) {
			leader := m.leader(t)
			leader.signal(t, syscall.SIGSTOP)
			<-time.After(5 * time.Second)
			leader.signal(t, syscall.SIGCONT)
			m.waitReady(t)
		}, 2500 * time.Millisecond, 1500 * time.Millisecond},
	} {
		t.Run(f.name, func(t *testing.T) { f.run(t) })
	}
}

func (f *failure) run(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	l := startLoad(t, broker.address, failureClients, 50*time.Millisecond)
	var all []time.Duration
	rounds, slack := repetitions(t)
	for n := range rounds {
		l.progress(2 * failureClients)
		began := time.Now()
		f.strike(t, m)
		l.progress(2 * failureClients)
		delays := l.delaysAround(began, began.Add(1500*time.Millisecond))
		t.Logf("%s %d: %d requests around it, median %v, p99 %v, latest %v", f.name, n+1,
			len(delays), rounded(delays, 0.5), rounded(delays, 0.99), rounded(delays, 1))
		all = append(all, delays...)
	}
	l.stop()
	slices.Sort(all)
	t.Logf("%s: %d requests in all, none failed; of %d around the failures median %v, p99 %v, latest %v", f.name, len(l.delays), len(all), rounded(all, 0.5), rounded(all, 0.99), rounded(all, 1))
	if percentile(all, 1) > slack*f.most || percentile(all, 0.99) > slack*f.p99 {
		t.Errorf("want at most %v, and a p99 of %v", slack*f.most, slack*f.p99)
	}
	l.check(t, broker.address)
}

func rounded(delays []time.Duration, share float64) time.Duration {
	return percentile(delays, share).Round(time.Millisecond)
}
