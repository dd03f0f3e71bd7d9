package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/cluster"
	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/server/node"
	"holdfast/mqttfront"
	"holdfast/mqttfront/embedded"
)

// broker is the address of the MQTT broker that the tests and examples use.
var broker string

// watches reports whether a client has watches in that store.
var watches func(clientID string) bool

// endWatches ends a client's watches, as an operator does.
var endWatches func(t *testing.T, clientID string)

func TestMain(m *testing.M) {
	stop, err := startStore()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// startStore starts an embedded broker and one node in this process.
func startStore() (stop func(), err error) {
	dir, err := os.MkdirTemp("", "holdfast-client-")
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	config := embedded.Config{
		Listen: "127.0.0.1:0", Log: log, Wall: cluster.SystemClock().Wall, Cluster: "holdfast",
		NodeUsername: "node", NodePassword: mqttfront.StaticPassword("secret"),
	}
	server, err := embedded.Start(config)
	if err != nil {
		return nil, err
	}
	broker = "mqtt://" + server.Address()
	address, err := mqttconn.ParseAddress(broker)
	if err != nil {
		return nil, err
	}
	identity, err := node.Identify(filepath.Join(dir, "n1"), "holdfast", "n1")
	if err != nil {
		return nil, err
	}
	front := mqttfront.DefaultConfig()
	front.Addresses = []mqttconn.Address{address}
	front.Username, front.Password = config.NodeUsername, config.NodePassword
	front.Identity.ClientIDProperty = embedded.ClientIDProperty
	network, id := cluster.NewNetwork(), identity.RaftID()
	running, err := node.Start(context.Background(), node.Config{
		Cluster: "holdfast", Name: "n1", DataDir: filepath.Join(dir, "n1"), Timing: cluster.LAN(),
		Offer: cluster.DefaultConfig().Offer,
		Front: front, Driver: server,
		Dialer: &mqttconn.Dialer{Addresses: front.Addresses, Timeout: front.ConnectTimeout},
		Links: node.Links{
			Address: raft.ServerAddress(id), Raft: network.Transport(id, cluster.LAN()),
			Peers: network, Attach: network.Attach,
		},
		MaxClockOffset: time.Second, Log: log, Registry: prometheus.NewRegistry(),
		Exit: func(err error) { panic(err) },
	}, identity, node.Members([]raft.Server{{ID: id, Address: raft.ServerAddress(id)}}))
	if err != nil {
		return nil, err
	}
	watches = func(clientID string) (any bool) {
		running.Cluster.View(func(m *fsm.Machine) { any = m.HasWatches(clientID) })
		return any
	}
	endWatches = func(t *testing.T, clientID string) {
		var found []fsm.WatchInfo
		running.Cluster.View(func(m *fsm.Machine) {
			found = m.ListWatches("", clientID,
				fsm.WatchInfo{}, 1000)
		})
		for i := range found {
			if _, err := running.Cluster.Execute(t.Context(), found[i].EndCommand()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for deadline := time.Now().Add(20 * time.Second); running.Ready() != nil ||
		!running.Front.Accepting(); {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the store is not ready: %w", running.Ready())
		}
		<-time.After(5 * time.Millisecond)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = running.Close(ctx)
		_ = server.Close()
		_ = os.RemoveAll(dir)
	}, nil
}
