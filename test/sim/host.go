package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/cluster/offer"
	"holdfast/cluster/raftlog"
	"holdfast/cluster/transport"
	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront"
	mqttbroker "holdfast/mqttfront/broker"
	"holdfast/mqttfront/metrics"
	"holdfast/test/sim/schedule"
)

// clusterName is the prefix of the nodes' client ids.
const clusterName = "holdfast"

// host is a machine with a disk and a clock, on which a node runs most of the time.
type host struct {
	sim  *simulation
	name string
	// number of the group of its node's goroutines, which stop together (package schedule)
	group  int
	disk   *disk
	offset atomic.Int64 // error of the wall clock, in milliseconds

	mu      schedule.Mutex
	process *process
	stopped bool // the run ends: no node starts any more
	// how many calls of hold are not undone by release: the node is not started meanwhile
	held    int
	damaged bool // a fault has damaged the disk: the node may refuse to go on
	removed bool // a fault has removed the member: the node may end because of that
	starts  int  // how many processes were started
	dark    bool // without power
	asleep  bool // a fault has stopped the node for long
	// the node takes a client's id from the broker's user property, not from the client's own claim
	stamped bool
}

func (h *host) address() string { return h.name + ":7400" }

func (h *host) wall() int64 { return time.Now().UnixMilli() + h.offset.Load() }

// process is one run of a node.
type process struct {
	host   *host
	stack  *stack
	mount  *mount
	log    *slog.Logger
	front  *mqttfront.Front
	node   atomic.Pointer[cluster.Node]
	number int // which of the host's processes it is, from 1

	closing  atomic.Bool
	closed   chan struct{} // closed when the node is closed
	registry *prometheus.Registry
	stop     context.CancelCauseFunc
	gone     chan struct{} // closed when the goroutine that runs the node has ended
	once     sync.Once
}

// running returns the node's process, or nil while it is down.
func (h *host) running() *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.process
}

// member returns the node, or nil while it is down or not a member yet.
func (h *host) member() *cluster.Node {
	if p := h.running(); p != nil {
		return p.node.Load()
	}
	return nil
}

// isAsleep reports whether a fault has stopped the node for long. Other faults leave it alone: a
// stopped process cannot end before it runs again.
func (h *host) isAsleep() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asleep
}

func (h *host) setAsleep(asleep bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asleep = asleep
}

// start runs a node, if none runs.
func (h *host) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.process != nil || h.stopped || h.held > 0 {
		return
	}
	h.starts++
	if h.dark {
		h.dark = false
		h.sim.network.host(h.name).power.open()
	}
	h.sim.network.rebooted(h.name)
	ctx, stop := context.WithCancelCause(context.Background())
	p := &process{
		host: h, stack: h.sim.network.newStack(h.name), log: h.sim.trace.logTo(h.name),
		registry: prometheus.NewRegistry(), number: h.starts,
		stop: stop, gone: make(chan struct{}), closed: make(chan struct{}),
	}
	p.mount = newMount(h.disk, p.exit)
	h.process = p
	h.sim.addRegistry(p.registry)
	h.sim.load.Go(func() {
		defer close(p.gone)
		schedule.Enter(h.group)
		if err := p.run(ctx); err != nil {
			p.exit(err)
		}
	})
}

var errKilled = errors.New("killed")

// kill ends the process as kill -9 does. With silently it ends it as a power failure does: the
// other machines are not told.
func (h *host) kill(silently bool) {
	h.hold() // nobody starts another one before this one is gone
	defer h.release()
	h.mu.Lock()
	p := h.process
	h.process = nil
	h.mu.Unlock()
	if p != nil {
		if silently {
			h.losePower()
		}
		p.die(silently)
		if silently {
			h.disk.losePower()
		}
		<-p.gone
	}
}

// losePower makes the host answer no dial until it starts again.
func (h *host) losePower() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.dark {
		h.dark = true
		h.sim.network.host(h.name).power.close()
	}
}

// hold prevents that the node is started; release allows it again.
func (h *host) hold() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held++
}

func (h *host) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held--
}

// die cuts the process off from the network and the disk, and cancels its context.
func (p *process) die(silently bool) {
	p.host.sim.deliveries.end(p.host.name, p.host.sim.trace.now())
	p.stack.die(silently)
	p.mount.die()
	p.stop(errKilled)
}

// shutdown stops the node as SIGTERM does.
func (h *host) shutdown() {
	h.mu.Lock()
	p := h.process
	h.mu.Unlock()
	if p == nil {
		return
	}
	const patience = 3 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if node := p.node.Load(); node != nil {
		p.front.Drain(ctx)
		if err := p.close(ctx, node); err != nil {
			h.sim.trace.add(h.name, "stopped: %v", err)
		}
	}
	// nobody starts another one before this one is gone: it may be paused, and has the address
	// until then
	h.hold()
	defer h.release()
	h.mu.Lock()
	if h.process == p {
		h.process = nil
	}
	h.mu.Unlock()
	p.stop(errKilled)
	<-p.gone
	p.die(false)
}

// exit is called by the node to end its process. A supervisor then starts the node again. If the
// node has ended because its data is damaged, or because it was removed, an operator first empties
// the disk.
func (p *process) exit(err error) {
	p.once.Do(func() {
		p.die(false)
		h := p.host
		h.sim.trace.add(h.name, "process %d ends: %v", p.number, err)
		h.sim.load.Go(func() {
			schedule.Enter(0)
			h.restartAfterExit(p, err)
		})
	})
}

func (h *host) restartAfterExit(p *process, reason error) {
	<-p.gone
	h.mu.Lock()
	current := h.process == p
	if current {
		h.process = nil
		h.held++
	}
	damaged, removed := h.damaged, h.removed
	h.mu.Unlock()
	if !current {
		return
	}
	if errors.Is(reason, errKilled) {
		h.release()
		return
	}
	wipe := false
	switch {
	case (errors.Is(reason, raftlog.ErrDisk) || errors.Is(reason, errDiskFails)) &&
		h.disk.inTrouble():
	case errors.Is(reason, cluster.ErrRemoved):
		if wipe = true; !removed {
			h.sim.violation("unexpected end", "%s: %v", h.name, reason)
		}
	default:
		if wipe = true; !damaged {
			h.sim.violation("unexpected end", "%s: %v", h.name, reason)
		}
	}
	if wipe {
		h.sim.trace.add(h.name, "the disk is emptied")
		h.wipe()
	}
	h.release()
	if h.sim.sleep(time.Second) {
		h.start()
	}
}

// wipe empties the disk of a host whose node is down.
func (h *host) wipe() {
	h.disk.wipe()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.damaged, h.removed = false, false
}

// identity returns the raft id of the node on this disk.
func (h *host) identity() raft.ServerID {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if h.disk.incarnation == "" {
		h.disk.incarnation = fmt.Sprintf("%08x", h.disk.random.Uint32())
	}
	return cluster.Identity{Node: h.name, Incarnation: h.disk.incarnation}.RaftID()
}

// run opens a node, and runs it until the context ends.
func (p *process) run(ctx context.Context) error {
	h, t := p.host, p.host.sim.tunables
	id := h.identity()
	network, err := transport.Listen(transport.Config{
		Cluster: clusterName, ID: id, Listen: h.address(), Advertise: h.address(), Network: p.stack,
		Timeout: 3 * time.Second, Patience: t.timing.Heartbeat, Log: p.log,
	})
	if err != nil {
		return err
	}
	links := network.Raft()
	closeLinks := links.(raft.WithClose).Close // closes the whole transport
	random := lockedRandom(rand.New(rand.NewPCG(h.sim.seed, uint64(p.number)<<8|uint64(h.name[1]))))
	front, err := p.openFront(random)
	if err != nil {
		return errors.Join(err, closeLinks())
	}
	stores, err := p.mount.stores(p.log)
	if err != nil {
		return errors.Join(err, closeLinks())
	}
	members, err := p.assemble(ctx, network, id, &stores)
	if err != nil {
		return errors.Join(err, closeLinks())
	}
	base := time.Now().Add(-time.Duration(random() % uint64(time.Hour)))
	config := cluster.DefaultConfig()
	config.ID, config.Address, config.Members = id, raft.ServerAddress(h.address()), members
	config.Timing, config.Offer = t.timing, offer.Offer{Settings: t.offer, KeepPolicy: true}
	t.cluster(&config)
	node, err := cluster.Open(config, cluster.Environment{
		Stores: stores, Transport: links, Client: network,
		Clock: cluster.Clock{
			Wall:      h.wall,
			Monotonic: func() time.Duration { return time.Since(base) },
		},
		Random:    random,
		FreeSpace: h.disk.free, Broker: p.front.Meeting(), Exit: p.exit, Log: p.log,
		Metrics: cluster.NewMetrics(p.registry),
	}, observer{front, h, p.mount.dead})
	if err != nil {
		// it may be closed already: a second time does no harm
		return errors.Join(err, closeLinks())
	}
	network.Serve(node)
	front.SetStore(node)
	p.node.Store(node)
	h.sim.trace.add(h.name, "process %d runs as %s", p.number, id)
	front.Run(ctx)
	at, cancel := context.WithCancel(context.Background())
	cancel() // no leadership transfer: the process is dead, or shutdown has closed the node already
	return p.close(at, node)
}

// close closes the node once. Later callers wait until it is closed. They wait for a channel,
// because without the overlay (package golib) a goroutine that waits for a sync.Mutex holds up
// virtual time.
func (p *process) close(ctx context.Context, node *cluster.Node) error {
	if p.closing.Swap(true) {
		<-p.closed
		return nil
	}
	defer close(p.closed)
	return node.Close(ctx)
}

func (p *process) dialBroker(ctx context.Context, address string) (net.Conn, error) {
	p.host.dialsBroker()
	return p.stack.DialBroker(ctx, address)
}

func (p *process) openFront(random func() uint64) (*mqttfront.Front, error) {
	h, broker := p.host, []mqttconn.Address{{Host: p.host.sim.broker.address}}
	config := h.sim.tunables.front
	config.Cluster, config.Node, config.Addresses = clusterName, h.name, broker
	h.mu.Lock()
	if h.stamped {
		config.Identity.ClientIDProperty = stampProperty
	}
	h.mu.Unlock()
	if h.name[1]%2 == 0 {
		// one node refuses as overload what another one executes, as while a change of the limit is
		// rolled out
		config.RequestsPerClient = mqttfront.DefaultConfig().RequestsPerClient
	}
	front, err := mqttfront.New(config, mqttfront.Environment{
		Dialer: &mqttconn.Dialer{
			Addresses: broker, Timeout: config.ConnectTimeout,
			Network: p.dialBroker,
		},
		Driver: mqttbroker.NoDriver{}, Wall: h.wall, Random: random, Log: p.log,
		Metrics: metrics.New(p.registry),
	})
	p.front = front
	return front, err
}

// assemble returns the members with which a node without state bootstraps the cluster, or nil if
// the node does not bootstrap it.
func (p *process) assemble(ctx context.Context, network *transport.Transport, id raft.ServerID,
	stores *raftlog.Stores,
) ([]raft.Server, error) {
	if has, err := stores.HasState(); has || err != nil {
		return nil, err
	}
	newcomer := &cluster.Newcomer{
		ID: id, Address: raft.ServerAddress(p.host.address()), Log: p.log,
		Peers: p.host.sim.peers(),
	}
	network.Serve(newcomer)
	return newcomer.Assemble(ctx, network)
}

// free returns the free space that the node finds on its disk, and whether that is too little.
func (d *disk) free() (uint64, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return 1 << 30, d.low
}

// lockedRandom makes a source safe for concurrent use.
func lockedRandom(r *rand.Rand) func() uint64 {
	var mu schedule.Mutex
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return r.Uint64()
	}
}

// state returns the status of the node's replica, or false while there is no node.
func (h *host) state() (status fsm.Status, ok bool) {
	node := h.member()
	if node == nil {
		return status, false
	}
	node.View(func(m *fsm.Machine) { status = m.Status() })
	return status, true
}
