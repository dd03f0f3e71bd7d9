package mqttfront

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/session"
)

// fakeStore accepts every command, executes none, and counts the proposals.
type fakeStore struct {
	machine *fsm.Machine
	dialer  *mqttconn.Dialer // of the front end

	mu       sync.Mutex
	proposed int
}

func (s *fakeStore) Propose(fsm.Command, any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proposed++
	return true
}

// count returns how much was proposed.
func (s *fakeStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proposed
}

func (s *fakeStore) Read(*fsm.Command, any) bool   { return true }
func (s *fakeStore) Flush()                        {}
func (s *fakeStore) HorizonAge() time.Duration     { return 0 }
func (s *fakeStore) SetHorizon(time.Duration)      {}
func (s *fakeStore) Confirm(context.Context) error { return nil }
func (s *fakeStore) View(f func(*fsm.Machine))     { f(s.machine) }
func (s *fakeStore) SetPublished(uint64)           {}

// newTestFront returns a front end without a store, and a store for its SetStore.
func newTestFront(t testing.TB) (*Front, *fakeStore) {
	t.Helper()
	config := DefaultConfig()
	config.Node, config.Addresses = "n1", make([]mqttconn.Address, 1)
	dialer := &mqttconn.Dialer{
		Addresses: []mqttconn.Address{{Host: "broker:1883"}},
		Timeout:   time.Second,
	}
	f, err := New(config, Environment{
		Dialer: dialer, Driver: broker.NoDriver{},
		Wall:   func() int64 { return time.Now().UnixMilli() },
		Random: func() uint64 { return 1 },
		Log:    slog.New(slog.DiscardHandler), Metrics: metrics.New(prometheus.NewRegistry()),
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, &fakeStore{machine: fsm.New(), dialer: dialer}
}

// arrive hands a request of the client c to a front end.
func arrive(f *Front, payload, correlation string) {
	p := &mqttconn.Publish{
		QoS: 1, Topic: topics.Invoke, Payload: []byte(payload),
		Properties: &mqttconn.Properties{
			ResponseTopic: "clients/c/r", CorrelationData: []byte(correlation),
			User: mqttconn.UserProperties{{Key: "__srcId", Value: "c"}},
		},
	}
	f.receiver.Receive(context.Background(), mqttconn.Message{Publish: p},
		session.Arrival{At: time.Now(), ReceivedAfter: time.Now(), SentAfter: time.Now()},
		func() {})
}

func TestFrontConfigErrorsNameTheField(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no node":           {func(c *Config) { c.Node = "" }, "Node"},
		"slash in the node": {func(c *Config) { c.Node = "a/b" }, "a/b"},
		"no address":        {func(c *Config) { c.Addresses = nil }, "Addresses"},
		"no publisher": {
			func(c *Config) { c.PublishingConnections = 0 },
			"PublishingConnections",
		},
		"no time between tries": {func(c *Config) { c.BackoffMax = 0 }, "BackoffMax"},
		"a broken second": {
			func(c *Config) { c.KeepAlive = 1500 * time.Millisecond },
			"KeepAlive",
		},
		"keep-alive too long": {func(c *Config) { c.KeepAlive = 19 * time.Hour }, "KeepAlive"},
		"session expires at 0": {
			func(c *Config) { c.SessionExpiry = 500 * time.Millisecond },
			"SessionExpiry",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := DefaultConfig()
			config.Node, config.Addresses = "n1", make([]mqttconn.Address, 1)
			if err := config.Validate(); err != nil {
				t.Fatal(err)
			}
			test.change(&config)
			if err := config.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v does not name %q", err, test.want)
			}
		})
	}
}
