// Package node assembles a node from its stores, Raft and the front end, and starts them in this
// order. It also measures what they need of the machine: memory and free disk space. Node.Close
// documents the order in which they stop.
package node

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/cluster/offer"
	"holdfast/cluster/peer"
	"holdfast/cluster/raftlog"
	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/server/audit"
	"holdfast/internal/server/settings"
	"holdfast/mqttfront"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/metrics"
)

// Config is what a Node is made of.
type Config struct {
	Cluster     string
	Name        string
	DataDir     string
	LogStore    raftlog.Kind
	MinFreeDisk int64 // in bytes
	Timing      cluster.Timing
	Offer       offer.Offer  // the replicated settings that this node asks the cluster for
	PolicyFile  string       // followed for changes; empty when there is none
	Audit       audit.Config // there is no audit log if its File is empty
	Front       mqttfront.Config
	Driver      broker.Driver
	Dialer      *mqttconn.Dialer
	Links       Links
	Log         *slog.Logger
	Registry    *prometheus.Registry
	// MaxClockOffset is how far the node's wall clock may differ from the cluster clock (the median
	// of the members' clocks) without a warning.
	MaxClockOffset time.Duration
	// Notes returns what an operator has to know beside what the node knows; it may be nil. It is
	// safe for concurrent use.
	Notes func() []string
	// Exit ends the process when the state or the disk cannot be trusted any more, or the node was
	// removed.
	Exit func(error)
}

// Links connect a node with the other members.
type Links struct {
	Address raft.ServerAddress // the address under which the others reach this node
	Raft    raft.Transport
	Peers   peer.Client
	// Attach is called with the opened node, and makes it answer calls of the other members.
	Attach func(*cluster.Node)
}

// Node is a running node. All methods are safe for concurrent use.
type Node struct {
	Cluster *cluster.Node
	Front   *mqttfront.Front

	config  Config
	audit   *audit.Log // nil when there is none
	space   *freeSpace
	memory  int64 // what this process may use, in bytes
	stop    context.CancelFunc
	workers sync.WaitGroup
}

// Identify returns the identity of the node that keeps its data in the folder. It makes the folder
// if it is missing, and a new identity if there is no log in it.
func Identify(dataDir, clusterName, name string) (cluster.Identity, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return cluster.Identity{}, fmt.Errorf("data folder: %w", err)
	}
	return cluster.LoadIdentity(dataDir, clusterName, name, rand.Uint64())
}

// Assemble finds out how a node without state begins. It returns the members of a new cluster, or
// nil if the node has joined an existing one.
type Assemble func(ctx context.Context) ([]raft.Server, error)

// Members returns an Assemble for a cluster whose first members are known.
func Members(members []raft.Server) Assemble {
	return func(context.Context) ([]raft.Server, error) { return members, nil }
}

// Start starts a node. A node without state waits for assemble; the context ends that wait. If
// Start succeeds, Close closes Links.Raft. If Start fails, the caller closes the links.
func Start(ctx context.Context, config Config, identity cluster.Identity, assemble Assemble) (*Node,
	error,
) {
	stores, err := raftlog.OpenStores(config.DataDir, config.LogStore, config.Log)
	if err != nil {
		return nil, err
	}
	n, err := start(ctx, config, identity, assemble, stores)
	if err != nil {
		return nil, errors.Join(err, stores.Close())
	}
	return n, nil
}

func start(ctx context.Context, config Config, identity cluster.Identity, assemble Assemble,
	stores raftlog.Stores,
) (*Node, error) {
	space, err := newFreeSpace(config.DataDir, config.MinFreeDisk)
	if err != nil {
		return nil, err
	}
	config.Front.Cluster, config.Front.Node = config.Cluster, config.Name
	clock := cluster.SystemClock()
	front, err := mqttfront.New(config.Front, mqttfront.Environment{
		Dialer: config.Dialer, Driver: config.Driver,
		Wall: clock.Wall, Random: rand.Uint64, Log: config.Log,
		Metrics: metrics.New(config.Registry),
	})
	if err != nil {
		return nil, err
	}
	var members []raft.Server
	hasState, err := stores.HasState()
	if err == nil && !hasState {
		members, err = assemble(ctx)
	}
	if err != nil {
		return nil, err
	}
	trail, err := openAudit(&config, string(identity.RaftID()), &stores)
	if err != nil {
		return nil, err
	}
	var observer cluster.Observer = front
	if trail != nil {
		observer = &audited{front, trail}
	}
	raftConfig := cluster.DefaultConfig()
	raftConfig.ID, raftConfig.Address, raftConfig.Members = identity.RaftID(), config.Links.Address,
		members
	raftConfig.Timing, raftConfig.Offer, raftConfig.MaxClockOffset = config.Timing, config.Offer,
		config.MaxClockOffset
	raftConfig.Proposals.ProposalAge = config.Front.ProposalAge
	member, err := cluster.Open(raftConfig, cluster.Environment{
		Stores: stores, Transport: config.Links.Raft, Client: config.Links.Peers, Clock: clock,
		Random: cryptoRandom, FreeSpace: space.get, Broker: front.Meeting(),
		AutoTotalBytes: settings.AutoTotalBytes(AvailableMemory()), Exit: config.Exit,
		Log: config.Log, Metrics: cluster.NewMetrics(config.Registry),
	}, observer)
	if err != nil {
		return nil, errors.Join(err, closeAudit(trail))
	}
	config.Links.Attach(member)
	cluster.RegisterState(config.Registry, member)
	front.SetStore(member)
	n := &Node{
		Cluster: member, Front: front, config: config, audit: trail, space: space,
		memory: AvailableMemory(),
	}
	n.run()
	return n, nil
}

func (n *Node) run() {
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.workers.Go(func() { n.Front.Run(ctx) })
	n.workers.Go(func() { n.space.watch(ctx, n.config.Log) })
	n.workers.Go(func() { n.warnOfForgeable(ctx) })
	if n.config.PolicyFile != "" {
		n.workers.Go(func() { n.followPolicy(ctx) })
	}
}

// Registry returns the metrics of the node.
func (n *Node) Registry() *prometheus.Registry { return n.config.Registry }

// Ready returns nil when the node can do its part: its broker session is up, there is room for
// requests, a leader is known, and this node is neither catching up nor waiting to become a voter.
// A node that leads must also serve.
func (n *Node) Ready() error {
	var faults []error
	if err := n.Front.Ready(); err != nil {
		faults = append(faults, err)
	}
	status := n.Cluster.Status()
	for _, fault := range []error{status.Divergence, status.OtherBroker} {
		if fault != nil {
			faults = append(faults, fault)
		}
	}
	switch {
	case status.LeaderID == "":
		faults = append(faults, noLeader(&status))
	case status.Role == "leader" && !(status.Serving && n.Front.Serving()):
		faults = append(faults, errors.New("cluster: this node leads and does not serve yet"))
	case status.Behind:
		faults = append(faults, errors.New("cluster: this node is catching up"))
	case status.Learning:
		// a rolling restart stops the next node when this one is ready: without this one's vote
		// that might cost the majority
		faults = append(faults, errors.New("cluster: this node does not vote yet"))
	}
	return errors.Join(faults...)
}

// lostFor is how long members have to be away until it is worth saying what can be done if they
// never come back.
const lostFor = 5 * time.Minute

// noLeader says that no leader is known, and which members are missing.
func noLeader(status *cluster.Status) error {
	var away []string
	var missing []time.Duration // of voters
	voters := cluster.CountVoters(status.Servers)
	for _, m := range status.Missing {
		if m.Suffrage != raft.Voter {
			continue
		}
		away = append(away,
			fmt.Sprintf("%s (for %v)", peer.NodeName(m.ID), m.For.Round(time.Second)))
		missing = append(missing, m.For)
	}
	text := "cluster: no leader is known"
	if len(away) > 0 {
		text += fmt.Sprintf(": %d of %d voters do not answer: %s", len(away), voters,
			strings.Join(away, ", "))
	}
	// a majority is missing since the last of so many went that the others are none
	slices.SortFunc(missing, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	if tooMany := voters - voters/2; voters > 1 && len(missing) >= tooMany &&
		missing[tooMany-1] > lostFor {
		text += "; bring back enough of them for a majority, or, if they are lost for good, see `holdfast raft recover --help`"
	}
	return errors.New(text)
}

// Warnings returns the problems of the node that do not keep it from being ready.
func (n *Node) Warnings() (notes []string) {
	if _, err := n.Cluster.ClockOffset(); err != nil {
		notes = append(notes, err.Error())
	}
	status := n.Cluster.Status()
	if note := aheadNote(status.State.Clock.Wall, n.Cluster.ClusterClock()); note != "" {
		notes = append(notes, note)
	}
	if n.policyIsForgeable() {
		notes = append(notes, forgeable)
	}
	if free, low := n.space.get(); low {
		notes = append(notes, fmt.Sprintf(
			"only %d bytes of disk space are free: this node ends when there are none", free))
	}
	if len(status.Apart) > 0 && status.OtherBroker == nil {
		notes = append(notes, "at another broker than this node, which leads: "+
			memberNames(status.Apart))
	}
	if others := len(status.DiskLow); others > 0 {
		effect := "the others go on without them"
		if status.StorageLow {
			effect = "they are so many that SETs that need more space are refused"
		}
		notes = append(notes, fmt.Sprintf("short of disk space: %s; %s",
			memberNames(status.DiskLow), effect))
	}
	if err := n.Front.DisconnectFeedErr(); err != nil {
		notes = append(notes, err.Error())
	}
	var limits fsm.Limits
	n.Cluster.View(func(m *fsm.Machine) {
		inForce, _ := m.Settings()
		limits = inForce.Limits
	})
	notes = append(notes, limitNotes(&limits, &status.State, n.memory)...)
	if n.config.Notes != nil {
		notes = append(notes, n.config.Notes()...)
	}
	return append(notes, n.Front.Notes()...)
}

// memberNames returns the names of members, with commas.
func memberNames(ids []raft.ServerID) string {
	var names []string
	for _, id := range ids {
		names = append(names, peer.NodeName(id))
	}
	return strings.Join(names, ", ")
}

// forgeable is the warning that a policy is in force although the broker does not stamp client ids.
const forgeable = "the policy rests on what clients say of themselves: set identity.clientIdProperty, and have the broker stamp it"

// policyIsForgeable reports whether a policy is in force although the broker does not stamp client
// ids: a client can then claim any id.
func (n *Node) policyIsForgeable() bool {
	if n.config.Front.Identity.ClientIDProperty != "" {
		return false
	}
	policy := false
	n.Cluster.View(func(m *fsm.Machine) {
		inForce, _ := m.Settings()
		policy = inForce.Policy != nil
	})
	return policy
}

// warnOfForgeable logs a warning each time that a policy begins to be forgeable.
func (n *Node) warnOfForgeable(ctx context.Context) {
	const interval = 5 * time.Second
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for was := false; ; {
		is := n.policyIsForgeable()
		if is && !was {
			n.config.Log.Warn(forgeable)
		}
		was = is
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Drain stops admitting requests, and waits until the admitted ones are answered or the context
// ends.
func (n *Node) Drain(ctx context.Context) { n.Front.Drain(ctx) }

// Close stops the node. Admitted requests are answered, and the leadership is transferred if there
// is another voter. Then Raft, the stores, the session with the broker and the audit log stop, in
// this order. The broker keeps the requests that arrive meanwhile. The context bounds the graceful
// part: the answers and the transfer.
func (n *Node) Close(ctx context.Context) error {
	n.Drain(ctx)
	err := n.Cluster.Close(ctx)
	n.stop()
	n.workers.Wait()
	return errors.Join(err, closeAudit(n.audit))
}

// cryptoRandom returns 64 bits that nobody can predict.
func cryptoRandom() uint64 {
	var bits [8]byte
	_, _ = cryptorand.Read(bits[:]) // never fails
	return binary.LittleEndian.Uint64(bits[:])
}
