package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"holdfast/cluster"
	"holdfast/internal/httpapi"
	"holdfast/internal/mqttconn"
	"holdfast/internal/node"
	"holdfast/internal/settings"
	"holdfast/mqttfront"
	"holdfast/mqttfront/embedded"
)

// devOptions are the flags of `holdfast dev`.
type devOptions struct {
	listen     string
	nodes      int
	data       string
	admin      string
	health     string
	policyFile string
	logLevel   string
	dialect    string
	foldCase   bool
}

func newDev() *cobra.Command {
	var o devOptions
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole product in one process: a broker, and a cluster inside",
		Long: `Starts an MQTT 5 broker and a cluster of Holdfast nodes in this process. Without --data, everything is in a temporary folder that is
removed at the end. It is for trying things out: one process is one point of failure.`,
		Example: "  holdfast dev\n  holdfast dev --listen 127.0.0.1:2883 --nodes 1 --data ./trial",
		Args:    positional(cobra.NoArgs),
		RunE:    func(command *cobra.Command, _ []string) error { return o.run(command) },
	}
	flags := command.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:1883", "`address` of the broker; port 0 is any free one")
	flags.IntVar(&o.nodes, "nodes", 3, "number of nodes: 1, 3 or 5")
	flags.StringVar(&o.data, "data", "", "`folder` for the data, which is kept (default: a temporary one)")
	flags.StringVar(&o.admin, "admin.listen", "127.0.0.1:0", "`address` of the first node's admin API; port 0 is any free one")
	flags.StringVar(&o.health, "health.listen", "127.0.0.1:0", "`address` of the first node's /livez, /readyz and /metrics")
	flags.StringVar(&o.policyFile, "policyFile", "", "authorization policy `file`")
	flags.StringVar(&o.dialect, "protocol.dialect", "auto", "auto, documented or sdk")
	flags.BoolVar(&o.foldCase, "protocol.caseInsensitive", false, "understand verbs and options in lower case")
	flags.StringVar(&o.logLevel, "log.level", "warn", "debug, info, warn or error")
	return command
}

// devCluster is what `holdfast dev` has started, in this order.
type devCluster struct {
	folder    string
	temporary bool
	broker    *embedded.Broker
	nodes     []*node.Node
	handlers  []http.Handler    // of the nodes' admin APIs
	forwarded []*httpapi.Server // of what the nodes forward to each other
	admin     *httpapi.Server
	health    *httpapi.Server
	exits     chan error
}

func (o *devOptions) run(command *cobra.Command) error {
	s := settings.Default()
	s.PolicyFile, s.Log.Level, s.Protocol.Dialect, s.Protocol.CaseInsensitive = o.policyFile, o.logLevel, o.dialect, o.foldCase
	if err := s.Validate(); err != nil {
		return err
	}
	if o.nodes != 1 && o.nodes != 3 && o.nodes != 5 {
		return usagef("--nodes is %d: must be 1, 3 or 5", o.nodes)
	}
	log, level := newLog(command.ErrOrStderr(), &s)
	d := &devCluster{exits: make(chan error, 1)}
	err := d.start(o, &s, log)
	ready := false
	if err == nil {
		ready, err = d.waitReady(command.Context())
	}
	if ready {
		d.welcome(command.OutOrStdout(), len(d.nodes))
		select {
		case <-command.Context().Done():
		case err = <-d.exits:
		}
	}
	level.Set(max(level.Level(), slog.LevelError)) // that nodes lose each other while all of them stop is no news
	return errors.Join(err, d.close())
}

func (d *devCluster) start(o *devOptions, s *settings.Settings, log *slog.Logger) (err error) {
	if d.folder = o.data; d.folder == "" {
		if d.folder, err = os.MkdirTemp("", "holdfast-dev-"); err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
		d.temporary = true
	}
	if err := checkFolder(d.folder, o.nodes); err != nil {
		return err
	}
	password := make([]byte, 16)
	_, _ = rand.Read(password) // never fails
	config := embedded.Config{
		Listen: o.listen, Log: log, Wall: cluster.SystemClock().Wall, Cluster: s.Cluster.Name,
		NodeUsername: "holdfast-node", NodePassword: mqttfront.StaticPassword(hex.EncodeToString(password)),
	}
	if d.broker, err = embedded.Start(config); err != nil {
		return err
	}
	offer, err := node.NewOffer(s)
	if err != nil {
		return &usageError{err}
	}
	if err := d.startNodes(o, s, config, offer, log); err != nil {
		return err
	}
	first := d.nodes[0]
	if d.admin, err = httpapi.Listen(o.admin, d.handlers[0], nil, log); err != nil {
		return err
	}
	d.health, err = httpapi.Listen(o.health, httpapi.Health(first.Ready, first.Notes, first.Registry()), nil, log)
	return err
}

// checkFolder refuses a folder that was made with another number of nodes: those that are missing would be waited for in vain.
func checkFolder(folder string, nodes int) error {
	found, err := filepath.Glob(filepath.Join(folder, "n[0-9]", "identity.json"))
	if err != nil {
		return err
	}
	if len(found) > 0 && len(found) != nodes {
		return usagef("--data %s is of %d nodes, --nodes is %d", folder, len(found), nodes)
	}
	return nil
}

func (d *devCluster) startNodes(o *devOptions, s *settings.Settings, broker embedded.Config, offer cluster.Offer, log *slog.Logger) error {
	names := make([]string, o.nodes)
	identities := make([]cluster.Identity, o.nodes)
	members := make([]raft.Server, o.nodes)
	for i := range o.nodes {
		names[i] = fmt.Sprintf("n%d", i+1)
		identity, err := node.Identify(filepath.Join(d.folder, names[i]), s.Cluster.Name, names[i])
		if err != nil {
			return err
		}
		identities[i] = identity
		members[i] = raft.Server{ID: identity.RaftID(), Address: raft.ServerAddress(identity.RaftID())}
	}
	address, err := mqttconn.ParseAddress(dialable(d.broker.Address()))
	if err != nil {
		return err
	}
	network := cluster.NewNetwork()
	for i, name := range names {
		front := mqttfront.DefaultConfig()
		front.Addresses = []mqttconn.Address{address}
		front.Username, front.Password = broker.NodeUsername, broker.NodePassword
		front.Identity = mqttfront.Identity{ClientIDProperty: embedded.ClientIDProperty, UsernameProperty: embedded.UsernameProperty}
		connected := inProcess(network, members[i].ID, devTiming(), node.Members(members))
		started, err := node.Start(context.Background(), node.Config{
			LogStore: cluster.BoltDB,
			Cluster:  s.Cluster.Name, Name: name, DataDir: filepath.Join(d.folder, name), MinFreeDisk: int64(s.Node.MinFreeDisk),
			Timing: devTiming(), Offer: offer, PolicyFile: followed(s.PolicyFile), Front: front, Driver: d.broker,
			Dialer: &mqttconn.Dialer{Addresses: front.Addresses, Timeout: front.ConnectTime},
			Links:  connected.Links, MaxClockOffset: s.Cluster.MaxClockOffset,
			Log: log.With("node", name), Registry: prometheus.NewRegistry(), Exit: d.exit,
		}, identities[i], connected.assemble)
		if err != nil {
			return err
		}
		d.nodes = append(d.nodes, started)
		d.handlers = append(d.handlers, httpapi.Admin(httpapi.AdminConfig{
			Name: name, Node: started.Cluster, Ready: started.Ready, Notes: started.Notes, Dial: connected.dial, Log: log,
			Metrics: started.Registry(), Version: version,
		}))
		d.forwarded = append(d.forwarded, httpapi.Serve(connected.http, d.handlers[i], log))
	}
	return nil
}

// devTiming is for several nodes that share one machine with everything else: a member that is late is no sign of a crash.
func devTiming() cluster.Timing {
	timing := cluster.LAN()
	timing.Heartbeat, timing.Election, timing.LeaderLease = 600*time.Millisecond, 600*time.Millisecond, 400*time.Millisecond
	return timing
}

// followed returns the policy file that is to be followed for changes.
func followed(policyFile string) string {
	if policyFile == settings.None {
		return ""
	}
	return policyFile
}

// dialable returns an address under which a listener can be reached from this machine.
func dialable(listening string) string {
	host, port, err := net.SplitHostPort(listening)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listening
}

// exit stops everything: one node's state or disk cannot be trusted any more.
func (d *devCluster) exit(err error) {
	select {
	case d.exits <- err:
	default:
	}
}

// waitReady waits until every node has its broker session and one of them serves. It returns false when it is interrupted.
func (d *devCluster) waitReady(ctx context.Context) (bool, error) {
	const poll = 10 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		serving, ready := false, 0
		for _, n := range d.nodes {
			if n.Ready() == nil {
				ready++
			}
			serving = serving || n.Front.Serving()
		}
		if serving && ready == len(d.nodes) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, nil // interrupted while starting
		case err := <-d.exits:
			return false, err
		case <-ticker.C:
		}
	}
}

func (d *devCluster) welcome(out io.Writer, nodes int) {
	address := dialable(d.broker.Address())
	flag := ""
	if address != "127.0.0.1:1883" {
		flag = " --broker " + address
	}
	folder := d.folder
	if d.temporary {
		folder += " (temporary)"
	}
	_, _ = fmt.Fprintf(out, `Holdfast is ready: %d node(s) behind an MQTT broker.

  broker   mqtt://%s
  admin    http://%s  (in a browser: the status page)
  metrics  http://%s/metrics
  data     %s

Try, in another terminal:

  %s set%s greeting hello
  %s get%s greeting

Ctrl-C stops it.
`, nodes, d.broker.Address(), d.admin.Address(), d.health.Address(), folder, os.Args[0], flag, os.Args[0], flag) // nobody may be looking
}

func (d *devCluster) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var faults []error
	for _, server := range append([]*httpapi.Server{d.health, d.admin}, d.forwarded...) {
		if server != nil {
			faults = append(faults, server.Close(ctx))
		}
	}
	for _, n := range d.nodes {
		n.Drain(ctx)
	}
	cancel() // all nodes end at once: there is nobody to hand over to
	ended := make([]error, len(d.nodes))
	var ending sync.WaitGroup
	for i, n := range d.nodes {
		ending.Go(func() { ended[i] = n.Close(ctx) })
	}
	ending.Wait()
	faults = append(faults, ended...)
	if d.broker != nil {
		faults = append(faults, d.broker.Close())
	}
	if d.temporary {
		faults = append(faults, os.RemoveAll(d.folder))
	}
	return errors.Join(faults...)
}
