// Package holdfasttest starts a real Holdfast with its MQTT broker in the process of a Go test, on
// Unix: what a test sees is what the product does.
//
//	func TestStoreServesAnotherModule(t *testing.T) {
//		store := holdfasttest.Start(t)
//		press := NewPress(store.URL()) // the code under test connects by MQTT, as it always does
//		...
//		value, _, err := store.Client(t).Get(t.Context(), "press/1/mode")
//	}
package holdfasttest

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/server/settings"
	"holdfast/internal/server/trial"
)

// Store is a Holdfast that runs until the test ends.
type Store struct {
	running *trial.Cluster
}

type config struct {
	trial    trial.Config
	settings settings.Settings
}

// Option changes what is started.
type Option func(*config)

// Nodes sets the number of nodes of the cluster: 1, 3 or 5. The default is 1, which starts fastest.
// Any other number ends the test.
func Nodes(count int) Option { return func(c *config) { c.trial.Nodes = count } }

// Policy makes the store enforce the authorization policy in a file. The broker adds the client id
// and the user name of the sender to each request.
func Policy(file string) Option { return func(c *config) { c.settings.PolicyFile = file } }

// Log sets where the store logs. By default nothing is logged.
func Log(log *slog.Logger) Option { return func(c *config) { c.trial.Log = log } }

// startTimeout bounds the wait until a store serves. Usually that takes a fraction of a second; a
// busy machine may need longer.
const startTimeout = 30 * time.Second

// Start starts a store with a broker on a free port of 127.0.0.1, and waits until it serves. When
// the test ends, the store is stopped and its data is deleted. A failure to start ends the test.
func Start(t testing.TB, options ...Option) *Store {
	t.Helper()
	c := config{
		settings: settings.Default(),
		trial: trial.Config{
			Listen: "127.0.0.1:0", Nodes: 1, Folder: t.TempDir(), Version: "test",
			Log: slog.New(slog.DiscardHandler),
		},
	}
	c.settings.Node.MinFreeDisk = 0 // a full disk of the machine must not fail a test
	c.trial.Settings = &c.settings
	for _, option := range options {
		option(&c)
	}
	running, err := trial.Start(c.trial)
	if err != nil {
		t.Fatalf("start holdfast: %v", err)
	}
	t.Cleanup(func() {
		select {
		case err := <-running.Exits():
			t.Errorf("holdfast has stopped: %v", err)
		default:
		}
		if err := running.Close(); err != nil {
			t.Errorf("stop holdfast: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if ready, err := running.WaitReady(ctx); !ready {
		t.Fatalf("holdfast does not serve: %v", errors.Join(ctx.Err(), err))
	}
	return &Store{running}
}

// Address returns the host and port of the broker.
func (s *Store) Address() string { return s.running.Broker() }

// URL returns the address of the broker as mqtt://host:port.
func (s *Store) URL() string { return "mqtt://" + s.Address() }

// Client returns a client that is connected until the test ends.
func (s *Store) Client(t testing.TB) *client.Client {
	t.Helper()
	connected, err := client.Connect(t.Context(), client.Config{Addresses: []string{s.Address()}})
	if err != nil {
		t.Fatalf("connect to holdfast: %v", err)
	}
	t.Cleanup(func() { _ = connected.Close() }) // Close always returns nil
	return connected
}
