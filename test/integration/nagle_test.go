package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testwait"
)

// A broker with Nagle's algorithm on, as Mosquitto's defaults have it, does not make a client of
// our library wait for 40 ms, which the kernel delays its acknowledgement of the PUBACK. Other
// clients do wait: the node says which line the broker lacks.
func TestBrokerWithNaglesAlgorithmIsServedQuickly(t *testing.T) {
	t.Parallel() // it mostly waits
	m := startMosquitto(t, "set_tcp_nodelay false")
	s := newServer(t, "mqtt://"+m.address, t.TempDir())
	s.waitReady(t)
	c := connectClient(t, m.address)
	var took []time.Duration
	for n := range 51 {
		began := time.Now()
		if _, err := c.Set(t.Context(), fmt.Sprint("k", n), []byte("v")); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	if median := took[len(took)/2]; median > 30*time.Millisecond {
		t.Errorf("a SET takes %v", median)
	}
	testwait.Within(t, 2*time.Minute, "the node names the line", func() bool {
		return strings.Contains(body("http://"+s.health+"/readyz"), "set_tcp_nodelay true")
	})
	s.stop()
}
