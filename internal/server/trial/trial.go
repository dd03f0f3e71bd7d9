// Package trial runs the whole product in one process: a broker, and a cluster of nodes behind it.
// It is for trying things out and for tests: one process is one point of failure.
package trial

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/cluster/offer"
	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
	"holdfast/internal/mqttconn"
	"holdfast/internal/server/httpapi"
	"holdfast/internal/server/node"
	"holdfast/internal/server/settings"
	"holdfast/mqttfront"
	"holdfast/mqttfront/embedded"
	"holdfast/mqttfront/wire"
)

// Config says what to run.
type Config struct {
	Listen string // listen address of the broker; port 0 means any free port
	Nodes  int    // 1, 3 or 5
	// folder of the data, kept after Close; empty means a temporary folder, which Close removes
	Folder   string
	Settings *settings.Settings
	// listen addresses to try in turn for the first node's admin API; none means no API
	Admin   []string
	Health  string // listen address of the first node's health port; empty means none
	Version string // of the program
	Log     *slog.Logger
}

// ErrConfig is wrapped by errors about an invalid Config.
var ErrConfig = errors.New("invalid configuration")

// Cluster is a broker with nodes behind it. Its methods are for one goroutine.
type Cluster struct {
	config    Config
	folder    string
	temporary bool
	broker    *embedded.Broker
	nodes     []*node.Node
	handlers  []http.Handler    // of the nodes' admin APIs
	forwarded []*httpapi.Server // for requests that the nodes forward to each other
	admin     *httpapi.Server
	health    *httpapi.Server
	exits     chan error
}

// Start starts everything. The nodes are not ready yet.
func Start(config Config) (*Cluster, error) {
	if config.Nodes != 1 && config.Nodes != 3 && config.Nodes != 5 {
		return nil, fmt.Errorf("%w: the number of nodes is %d: must be 1, 3 or 5", ErrConfig,
			config.Nodes)
	}
	c := &Cluster{config: config, exits: make(chan error, 1)}
	if err := c.start(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Broker returns the host and port under which the broker can be reached from this machine.
func (c *Cluster) Broker() string { return settings.Dialable(c.broker.Address()) }

// Admin returns the host and port of the first node's admin API, or "" if there is none.
func (c *Cluster) Admin() string { return address(c.admin) }

// Health returns the host and port of the first node's health port, or "" if there is none.
func (c *Cluster) Health() string { return address(c.health) }

func address(s *httpapi.Server) string {
	if s == nil {
		return ""
	}
	return s.Address()
}

// Folder returns where the data is, and whether that is temporary.
func (c *Cluster) Folder() (folder string, temporary bool) { return c.folder, c.temporary }

// Exits returns the channel on which an error arrives when a node cannot go on. WaitReady receives
// from the same channel.
func (c *Cluster) Exits() <-chan error { return c.exits }

func (c *Cluster) start() (err error) {
	config := &c.config
	if c.folder = config.Folder; c.folder == "" {
		if c.folder, err = os.MkdirTemp("", "holdfast-"); err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
		c.temporary = true
	}
	if err := c.checkFolder(); err != nil {
		return err
	}
	password := make([]byte, 16)
	_, _ = rand.Read(password) // never fails
	broker := embedded.Config{
		Listen: config.Listen, Log: config.Log, Wall: cluster.SystemClock().Wall,
		Cluster:      config.Settings.Cluster.Name,
		NodeUsername: "holdfast-node",
		NodePassword: mqttfront.StaticPassword(hex.EncodeToString(password)),
	}
	if c.broker, err = embedded.Start(broker); err != nil {
		return err
	}
	wanted, err := node.NewOffer(config.Settings)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := c.startNodes(broker, wanted); err != nil {
		return err
	}
	first := c.nodes[0]
	for i, address := range config.Admin {
		c.admin, err = httpapi.Listen(address, httpapi.Local(c.handlers[0]), nil, config.Log)
		if err == nil {
			break
		}
		if i == len(config.Admin)-1 || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	if config.Health != "" {
		c.health, err = httpapi.Listen(config.Health,
			httpapi.Health(first.Ready, first.Warnings, first.Registry()), nil, config.Log)
	}
	return err
}

// checkFolder refuses a folder that has the logs of another number of nodes: the nodes without a
// log get new ids, which the configuration in the other logs does not name.
func (c *Cluster) checkFolder() error {
	folders, err := filepath.Glob(filepath.Join(c.folder, "n[0-9]"))
	if err != nil {
		return err
	}
	logs := 0
	for _, folder := range folders {
		if raftlog.HasLog(folder) {
			logs++
		}
	}
	if logs > 0 && logs != c.config.Nodes {
		return fmt.Errorf("%w: folder %s has the data of %d nodes, want %d: use another folder, or remove it", ErrConfig, c.folder, logs, c.config.Nodes)
	}
	return nil
}

func (c *Cluster) startNodes(broker embedded.Config, wanted offer.Offer) error {
	identities := make([]cluster.Identity, c.config.Nodes)
	members := make([]raft.Server, c.config.Nodes)
	for i := range members {
		name := fmt.Sprintf("n%d", i+1)
		identity, err := node.Identify(filepath.Join(c.folder, name),
			c.config.Settings.Cluster.Name, name)
		if err != nil {
			return err
		}
		identities[i] = identity
		members[i] = raft.Server{
			ID:      identity.RaftID(),
			Address: raft.ServerAddress(identity.RaftID()),
		}
	}
	address, err := mqttconn.ParseAddress(c.Broker())
	if err != nil {
		return err
	}
	front := mqttfront.DefaultConfig()
	front.Addresses = []mqttconn.Address{address}
	front.Username, front.Password = broker.NodeUsername, broker.NodePassword
	front.Identity = wire.Identity{
		ClientIDProperty: embedded.ClientIDProperty,
		UsernameProperty: embedded.UsernameProperty,
	}
	network := cluster.NewNetwork()
	for i := range members {
		if err := c.startNode(network, members, identities[i], front, wanted); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) startNode(network *cluster.Network, members []raft.Server,
	identity cluster.Identity, front mqttfront.Config, wanted offer.Offer,
) error {
	s, log, id := c.config.Settings, c.config.Log, identity.RaftID()
	name := peer.NodeName(id)
	links := node.Links{
		Address: raft.ServerAddress(id), Raft: network.Transport(id, timing()), Peers: network,
		Attach: network.Attach,
	}
	started, err := node.Start(context.Background(), node.Config{
		// it takes 64 MiB less disk space than the WAL; the folder may be on a file system in
		// memory
		LogStore: raftlog.BoltDB,
		Cluster:  s.Cluster.Name, Name: name, DataDir: filepath.Join(c.folder, name),
		MinFreeDisk: int64(s.Node.MinFreeDisk),
		Timing:      timing(), Offer: wanted, PolicyFile: s.FollowedPolicy(), Front: front,
		Driver: c.broker,
		Dialer: &mqttconn.Dialer{Addresses: front.Addresses, Timeout: front.ConnectTimeout},
		Links:  links, MaxClockOffset: s.Cluster.MaxClockOffset,
		Log: log.With("node", name), Registry: prometheus.NewRegistry(), Exit: c.reportExit,
	}, identity, node.Members(members))
	if err != nil {
		return err
	}
	c.nodes = append(c.nodes, started)
	handler := httpapi.Admin(httpapi.AdminConfig{
		Name: name, Node: started.Cluster, Ready: started.Ready, Notes: started.Warnings,
		Dial: network.DialHTTP, Log: log,
		Metrics: started.Registry(), Version: c.config.Version, Mirrors: started.Front.Mirror(),
	})
	c.handlers = append(c.handlers, handler)
	c.forwarded = append(c.forwarded, httpapi.Serve(network.HTTP(id), handler, log))
	return nil
}

// timing has twice LAN's election timeout: all nodes share one machine with everything else, so a
// late heartbeat is no sign of a crash.
func timing() cluster.Timing {
	timing := cluster.LAN()
	timing.Heartbeat, timing.Election, timing.LeaderLease = 600*time.Millisecond,
		600*time.Millisecond, 400*time.Millisecond
	return timing
}

// reportExit reports that a node cannot go on: its state or disk cannot be trusted, or it was
// removed. A report is dropped while an earlier one has not been received.
func (c *Cluster) reportExit(err error) {
	select {
	case c.exits <- err:
	default:
	}
}

// WaitReady waits until every node is ready and one of them serves. It returns false and nil if the
// context ends first, and false and the error if a node cannot go on.
func (c *Cluster) WaitReady(ctx context.Context) (bool, error) {
	const poll = 10 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		serving, ready := false, 0
		for _, n := range c.nodes {
			if n.Ready() == nil {
				ready++
			}
			serving = serving || n.Front.Accepting()
		}
		if serving && ready == len(c.nodes) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, nil // interrupted while starting
		case err := <-c.exits:
			return false, err
		case <-ticker.C:
		}
	}
}

// closeTimeout bounds the graceful part of a stop.
const closeTimeout = 10 * time.Second

// Close stops everything, and removes the folder if it is temporary.
func (c *Cluster) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var faults []error
	for _, server := range append([]*httpapi.Server{c.health, c.admin}, c.forwarded...) {
		if server != nil {
			faults = append(faults, server.Close(ctx))
		}
	}
	for _, n := range c.nodes {
		n.Drain(ctx)
	}
	cancel() // with a canceled context Close skips the leader transfer: all nodes stop at once
	ended := make([]error, len(c.nodes))
	var ending sync.WaitGroup
	for i, n := range c.nodes {
		ending.Go(func() { ended[i] = n.Close(ctx) })
	}
	ending.Wait()
	faults = append(faults, ended...)
	if c.broker != nil {
		faults = append(faults, c.broker.Close())
	}
	if c.temporary {
		faults = append(faults, os.RemoveAll(c.folder))
	}
	return errors.Join(faults...)
}
