package integration

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/internal/tcpproxy"
	"holdfast/internal/testwait"
)

// proxiedMembers starts three members, each of which reaches the broker over a proxy of its own.
func proxiedMembers(t *testing.T, broker string) (members, map[*server]*tcpproxy.Proxy) {
	t.Helper()
	m := prepareMembers(t, 3, "", "--log.level", "info")
	proxies := make(map[*server]*tcpproxy.Proxy)
	for _, s := range m {
		proxies[s] = tcpproxy.Start(t, broker)
		s.arguments[slices.Index(s.arguments, "--broker.addresses")+1] = "mqtt://" +
			proxies[s].Address()
		s.start(t)
	}
	m.waitReady(t)
	return m, proxies
}

// A leader that alone has lost the broker hands over within 3 s, whether the connections end or
// fall silent, and no request fails.
func TestLeaderLosesTheBroker(t *testing.T) {
	broker := startMosquitto(t)
	m, proxies := proxiedMembers(t, broker.address)
	l := startLoad(t, broker.address, 16, 20*time.Millisecond)
	for name, state := range map[string]tcpproxy.State{
		"cut":    tcpproxy.Refusing,
		"silent": tcpproxy.Silent,
	} {
		t.Run(name, func(t *testing.T) {
			l.progress(100)
			leader := m.leader(t)
			began := time.Now()
			proxies[leader].Set(state)
			for m.leader(t) == leader {
				if time.Since(began) > time.Minute {
					t.Fatal("nobody takes over")
				}
			}
			took := time.Since(began)
			l.progress(50)
			late := percentile(l.delaysAround(began, began.Add(5*time.Second)), 1)
			t.Logf("%s: handed over after %v, the latest request took %v", name,
				took.Round(time.Millisecond), late.Round(time.Millisecond))
			if took > 3*time.Second {
				t.Errorf("handed over after %v", took)
			}
			testwait.Until(t, "a node without its broker says that it is not ready", func() bool {
				return httpStatus("http://"+leader.health+"/readyz") != http.StatusOK
			})
			proxies[leader].Set(tcpproxy.Open)
			m.waitReady(t)
		})
	}
	l.stop()
	l.check(t, broker.address)
}

// When the broker of a cluster restarts under load, no request fails, and nothing that was
// acknowledged is lost.
func TestBrokerRestartUnderAClusterLosesNothing(t *testing.T) {
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	l := startLoad(t, broker.address, 16, 10*time.Millisecond)
	for range 3 {
		l.progress(200)
		broker.kill()
		<-time.After(300 * time.Millisecond)
		broker.start(t)
	}
	l.progress(200)
	m.waitReady(t)
	l.stop()
	l.check(t, broker.address)
	m.awaitAgreement(t, 3)
}

// Two nodes of one name: at least one of them logs it, and they do not take over each other's
// session for ever.
func TestTwoNodesOfOneNameAreLogged(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	first := newServer(t, "mqtt://"+broker.address, t.TempDir())
	first.waitReady(t)
	second := newServer(t, "mqtt://"+broker.address, t.TempDir())
	testwait.Until(t, "one of them says so", func() bool {
		return strings.Contains(first.output.String()+second.output.String(),
			"is there a second node of this name?")
	})
	connects := func() int { return strings.Count(broker.output.String(), "as holdfast-n1-in") }
	<-time.After(time.Second)
	before := connects()
	<-time.After(3 * time.Second)
	if more := connects() - before; more > 4 {
		t.Errorf("%d connections in 3 s: they fight", more)
	}
}

// Two clusters of one name at one broker: a node of one of them logs it.
func TestTwoClustersOfOneNameAreLogged(t *testing.T) {
	broker := startMosquitto(t)
	first := newServer(t, "mqtt://"+broker.address, t.TempDir())
	second := newServer(t, "mqtt://"+broker.address, t.TempDir(), "--node.id", "m1")
	testwait.Until(t, "it is said", func() bool {
		return strings.Contains(first.output.String()+second.output.String(),
			"give each cluster its own name")
	})
}

// rss returns the memory of a process in bytes, without what is mapped from files.
func (p *process) rss(t testing.TB) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	return 0
}

// A node that was down while 480 MiB of log were written catches up while requests are served, and
// no member uses more than 512 MiB of memory. With values of 4 MiB, a bound on the number of
// entries would not bound the memory.
func TestMemoryIsBoundedDuringACatchUp(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	m := startMembers(t, 3, "mqtt://"+broker.address, "--log.level", "info")
	store := connectClient(t, broker.address)
	away := m.other(m.leader(t))
	away.kill()
	l := startLoad(t, broker.address, 4, 20*time.Millisecond)
	value := make([]byte, 4<<20)
	const keys, writes = 8, 120 // 480 MiB of log over 32 MiB of state
	for n := range writes {
		value[0] = byte(n)
		if _, err := store.Set(t.Context(), fmt.Sprint("large", n%keys), value); err != nil {
			t.Fatal(err)
		}
	}
	leader := m.leader(t)
	if out, code := leader.operate(t, "raft", "snapshot", "take"); code != 0 {
		// it also compacts the log, up to its newest entries
		t.Fatal(out)
	}
	began := time.Now()
	away.start(t)
	away.waitReady(t)
	m.awaitAgreement(t, 3)
	t.Logf("caught up after %v; resident: leader %d MiB, node that was away %d MiB",
		time.Since(began).Round(time.Millisecond), leader.rss(t)>>20, away.rss(t)>>20)
	for _, s := range m {
		if rss := s.rss(t); rss > 512<<20 {
			t.Errorf("%s uses %d MiB", s.id, rss>>20)
		}
	}
	l.progress(50)
	l.stop()
	l.check(t, broker.address)
}
