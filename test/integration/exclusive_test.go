package integration

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/tcpproxy"
	"holdfast/internal/testwait"
)

// body returns what a health port answers.
func body(url string) string {
	response, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}

// † Two clusters with different names at one broker: the second serves nobody, and both say so.
// When the first is gone, the second serves.
func TestSecondClusterAtABrokerDoesNotServe(t *testing.T) {
	t.Parallel() // it mostly waits
	m := startMosquitto(t)
	first := newServer(t, "mqtt://"+m.address, t.TempDir(), "--cluster.name", "plant")
	first.waitReady(t)
	if _, code := holdfast(t, m.address, "", "set", "k", "v"); code != 0 {
		t.Fatal("the first does not serve")
	}
	second := newServer(t, "mqtt://"+m.address, t.TempDir(), "--cluster.name", "trial")
	testwait.Until(t, "the second says who is there", func() bool {
		return strings.Contains(body("http://"+second.health+"/readyz"),
			`another store answers requests at this broker (cluster and node "plant/n1")`)
	})
	testwait.Until(t, "the first knows of the second", func() bool {
		text := body("http://" + first.health + "/readyz")
		return strings.HasPrefix(text, "ok\n") && strings.Contains(text, `"trial/n1"`)
	})
	for range 20 { // the second would say that the key is not there
		if value, code := holdfast(t, m.address, "", "get", "k"); code != 0 ||
			strings.TrimSpace(value) != "v" {
			t.Fatalf("%q, exit code %d", value, code)
		}
	}
	if text := body("http://" + second.health + "/metrics"); !strings.Contains(text,
		"\nholdfast_other_store 1\n") {
		t.Error("the second's metric does not show the first")
	}
	if code, _ := first.stop(); code != 0 {
		t.Errorf("the first ends with %d", code)
	}
	second.waitReady(t)
	if _, code := holdfast(t, m.address, "", "set", "k", "w"); code != 0 {
		t.Error("the second does not serve after the first is gone")
	}
	second.stop()
}

// † A leader whose connection breaks for a moment goes to the second broker of its list, where
// nobody hears it. It hands over, says so, and comes back.
func TestNodeAtTheSecondBrokerComesBack(t *testing.T) {
	t.Parallel() // it mostly waits
	first, second := startMosquitto(t), startMosquitto(t)
	list := prepareMembers(t, 3, "")
	proxies := make(map[*server]*tcpproxy.Proxy)
	for _, s := range list {
		proxies[s] = tcpproxy.Start(t, first.address)
		s.arguments[slices.Index(s.arguments, "--broker.addresses")+1] = "mqtt://" +
			proxies[s].Address() + ",mqtt://" + second.address
		s.start(t)
	}
	list.waitReady(t)
	leader := list.leader(t)
	proxies[leader].Set(tcpproxy.Refusing)
	testwait.Until(t, "it says that it is at another broker", func() bool {
		return strings.Contains(body("http://"+leader.health+"/readyz"),
			"not at the same broker as the others")
	})
	if text := body("http://" + leader.health + "/metrics"); !strings.Contains(text,
		"\nholdfast_other_broker 1\n") {
		t.Error("the metric does not show it")
	}
	testwait.Until(t, "clients are answered", func() bool {
		_, code := holdfast(t, first.address, "", "set", "k", "v")
		return code == 0
	})
	proxies[leader].Set(tcpproxy.Open)
	list.waitReady(t)
}
