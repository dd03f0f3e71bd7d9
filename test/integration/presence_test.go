package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/testwait"
)

// watchesOf returns how many keys a client watches.
func watchesOf(t *testing.T, s *server, client string) int {
	t.Helper()
	var answer struct {
		Watches []struct {
			Client string `json:"client"`
		} `json:"watches"`
	}
	if _, err := s.api("GET", "/v1/watches?client="+client, nil, &answer); err != nil {
		t.Fatal(err)
	}
	return len(answer.Watches)
}

// watch connects a client that watches a key.
func watch(t *testing.T, target *target, id string) *peer {
	t.Helper()
	p := connect(t, target, id, false)
	if reply := p.call(request{payload: array("KEYNOTIFY", "k")}); string(
		reply.Payload) != "+OK\r\n" {
		t.Fatalf("%q", reply.Payload)
	}
	return p
}

func (p *peer) leave() { _ = p.client.Disconnect(&paho.Disconnect{}) }

// A client's watches end when Mosquitto reports that the client has disconnected, that its
// connection is lost, or that the broker has restarted. The test logs how long that takes: a watch
// that is younger than a few seconds ends only when the node handles the disconnect for the second
// time, after 2.5 s.
func TestWatchesEndWithTheirClientOnMosquitto(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t, "sys_interval 1")
	s := newServer(t, broker.address, t.TempDir(), "--broker.driver", "mosquitto")
	s.waitReady(t)
	testwait.Until(t, "the node listens to who goes away",
		func() bool { return strings.Contains(s.output.String(), "client-disconnect feed is up") })
	for name, leave := range map[string]func(*peer){
		"disconnect": (*peer).leave,
		"cut":        func(p *peer) { _ = p.conn.Close() },
	} {
		for _, age := range []time.Duration{0, 4 * time.Second} {
			t.Run(fmt.Sprintf("%s, a watch of %v", name, age), func(t *testing.T) {
				id := fmt.Sprintf("%s-%v", name, age)
				o := watch(t, &target{address: broker.address}, id)
				testwait.Until(t, "the watch is there",
					func() bool { return watchesOf(t, s, id) == 1 })
				<-time.After(age) // what is measured depends on it
				left := time.Now()
				leave(o)
				testwait.Until(t, "the watch ends", func() bool { return watchesOf(t, s, id) == 0 })
				took := time.Since(left)
				t.Logf("%s, a watch of %v: ended after %v", name, age, took.Round(time.Millisecond))
				if most := 5 * time.Second; took > most {
					t.Errorf("%s, a watch of %v: ended after %v, want at most %v", name, age, took,
						most)
				}
			})
		}
	}
	watch(t, &target{address: broker.address}, "restart")
	testwait.Until(t, "the watch is there", func() bool { return watchesOf(t, s, "restart") == 1 })
	// a younger watch would stay: nodes know the time of the broker's start only to within seconds
	<-time.After(8 * time.Second)
	broker.kill()
	broker.start(t)
	testwait.Until(t, "the watch ends with the broker",
		func() bool { return watchesOf(t, s, "restart") == 0 })
}

// † A client disconnects and reconnects at once, or takes over its own session, and makes a new
// watch. The broker may report the end of the earlier connection late: that does not end the new
// watch.
func TestLateDisconnectEndsNoNewWatchOnMosquitto(t *testing.T) {
	t.Parallel() // it mostly waits
	broker := startMosquitto(t)
	s := newServer(t, broker.address, t.TempDir(), "--broker.driver", "mosquitto")
	s.waitReady(t)
	testwait.Until(t, "the node listens to who goes away",
		func() bool { return strings.Contains(s.output.String(), "client-disconnect feed is up") })
	const clients = 20
	for round := range 3 {
		for i := range clients {
			id := fmt.Sprintf("c%d", i)
			before := watch(t, &target{address: broker.address}, id)
			if i%2 == 0 {
				before.leave()
			}
			// for odd i, it takes over the session of the first connection
			watch(t, &target{address: broker.address}, id)
		}
		// A node handles each disconnect a second time after 2.5 s, with its next marker (a message
		// that it sends itself through the broker).
		<-time.After(4 * time.Second)
		for i := range clients {
			if id := fmt.Sprintf("c%d", i); watchesOf(t, s, id) != 1 {
				t.Errorf("round %d: %s has no watch", round, id)
			}
		}
	}
	if counter := `holdfast_client_disconnects_total{result="logged"} `; !strings.Contains(
		s.metrics(t), counter) || strings.Contains(s.metrics(t), counter+"0\n") {
		t.Error("disconnects are not counted")
	}
}
