package sim

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/fsm"
	"holdfast/test/history"
	"holdfast/test/sim/schedule"
	"holdfast/test/workload"
)

// Config says what to simulate.
type Config struct {
	Seed uint64 // seed of the settings, the faults and what the clients want
	// seed of the order of goroutines, in a binary with the overlay (package golib)
	Schedule uint64
	Duration time.Duration // how long the load and the faults last, in virtual time
	Nodes    int           // 0 draws 3 or 5
	// Kinds are the kinds of faults that are drawn. An empty list means all kinds.
	Kinds []string
	// Without lists drawn faults and clients that a smaller run leaves out: faults by their number
	// in the plan, from 1, and clients by their id.
	Without []string
	Log     slog.Level // lowest level of the nodes' log lines that the trace keeps
	// Record receives the switches between goroutines, as many as it has room for.
	Record []schedule.Switch
}

func (c *Config) without(what string) bool { return slices.Contains(c.Without, what) }

// simulation is one run: a cluster, a broker, clients, and what happens to them.
type simulation struct {
	seed     uint64
	config   Config
	settings schedule.Settings
	summary  schedule.Summary
	recorded int // how many elements of config.Record are filled
	tunables *tunables
	trace    *trace
	network  *network
	broker   *broker
	hosts    []*host
	clients  []*client
	load     *workload.Load
	plan     []fault

	deliveries deliveries
	executions executions
	traps      traps

	mu         schedule.Mutex
	violations []history.Violation
	registries []*prometheus.Registry
	effects    map[string]int // how many faults had an effect, by kind
	damaging   channelMutex   // held while a machine loses its data, or a member is removed
	restarting channelMutex   // held while the broker is down for a restart
	clockLock  channelMutex   // held by the fault that sets clocks
	recovered  time.Duration  // how long it took until service was back

	findings *history.Findings
}

// channelMutex is a lock that may be held while virtual time passes. Without the overlay (package
// golib) a goroutine that waits for a sync.Mutex stops virtual time.
type channelMutex chan struct{}

func (t channelMutex) Lock()   { t <- struct{}{} }
func (t channelMutex) Unlock() { <-t }

func (t channelMutex) TryLock() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// newSimulation prepares a run. It is called in a synctest bubble, which has virtual time. It
// starts the schedule before it makes the first map, because each map draws from the seed.
func newSimulation(config Config) *simulation {
	settings := schedule.Draw(config.Seed, config.Schedule)
	schedule.Start(settings, config.Record)
	r := rand.New(rand.NewPCG(config.Seed, 1))
	nodes := config.Nodes
	if nodes == 0 {
		nodes = pick(r, 3, 3, 3, 5)
	}
	s := &simulation{
		seed: config.Seed, config: config, settings: settings, tunables: drawTunables(r, nodes),
		trace: newTrace(config.Log), findings: &history.Findings{},
		effects: make(map[string]int), deliveries: newDeliveries(), executions: newExecutions(),
		damaging: make(channelMutex, 1), restarting: make(channelMutex, 1),
		clockLock: make(channelMutex, 1),
	}
	s.tunables.drawBatching(rand.New(rand.NewPCG(config.Seed, 4)))
	s.load = workload.New(workload.Settings{
		Seed: s.seed, Expiry: s.tunables.expiry, DefaultExpiry: s.tunables.front.DefaultExpiry,
		CopyWindow: s.tunables.front.SessionExpiry,
		Lifetime:   s.tunables.outcomeLifetime(), Pace: s.tunables.pace,
		LockTTL:    s.tunables.lockTTL,
		Generation: 6 * time.Second,
	})
	s.network = newNetwork(rand.New(rand.NewPCG(config.Seed, 2)), s.tunables.latency)
	s.broker = newBroker(s.network, s.tunables.broker)
	s.broker.published = func(m *packets.Publish) {
		s.deliveries.publish(m.Topic, m.Properties.CorrelationData, s.trace.now())
	}
	for i := range nodes {
		disk := newDisk(rand.New(rand.NewPCG(config.Seed, 100+uint64(i))), s.tunables.diskLatency)
		s.hosts = append(s.hosts,
			&host{sim: s, name: fmt.Sprintf("n%d", i+1), group: i + 1, disk: disk})
	}
	s.plan = drawPlan(rand.New(rand.NewPCG(config.Seed, 3)), s.tunables, config.Duration,
		config.Kinds)
	return s
}

func (s *simulation) peers() (peers []cluster.InitialMember) {
	for _, h := range s.hosts {
		peers = append(peers, cluster.InitialMember{
			Name:    h.name,
			Address: raft.ServerAddress(h.address()),
		})
	}
	return peers
}

// sleep waits, and reports whether the simulation goes on.
func (s *simulation) sleep(d time.Duration) bool { return s.load.Sleep(d) }

func (s *simulation) violation(check, format string, args ...any) {
	v := history.Violation{Check: check, Text: fmt.Sprintf(format, args...)}
	s.trace.add("VIOLATION", "%s: %s", v.Check, v.Text)
	s.mu.Lock()
	defer s.mu.Unlock()
	same := 0
	for i := range s.violations {
		if s.violations[i].Check == check {
			same++
		}
	}
	if same < history.MaxViolations {
		s.violations = append(s.violations, v)
	}
}

func (s *simulation) addRegistry(r *prometheus.Registry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registries = append(s.registries, r)
}

func (s *simulation) recordEffect(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.effects[kind]++
}

// run is the simulation, from beginning to end.
func (s *simulation) run() {
	s.live()
	s.summary, s.recorded = schedule.Finish()
}

func (s *simulation) live() {
	if err := s.broker.start(); err != nil {
		s.violation("simulation", "the broker does not start: %v", err)
		return
	}
	for _, h := range s.hosts {
		h.start()
	}
	prober := newClient(s, "prober-0", true)
	s.awaitVersion() // before the first request: the prober sends transactions, too
	s.recoverWithin(prober, 30*time.Second, "at the beginning")
	s.load.Staff(func(id string, persistent bool) *workload.Client {
		if s.config.without(id) {
			return nil
		}
		c := newClient(s, id, persistent)
		s.clients = append(s.clients, c)
		return c.Client
	}, false)
	apps := s.startApps()
	watched := make(chan struct{})
	s.load.Go(func() { s.watchBounds(watched) })
	s.injectFaults()
	schedule.Calm()
	s.sleep(s.settings.Longest)
	for _, h := range s.hosts {
		h.offset.Store(0)
	}
	s.recoverWithin(prober, s.tunables.recoveryTime(), "after the last fault")
	s.load.StopClients()
	apps.end()
	s.converge()
	s.checkMirrors()
	s.finalReads(prober)
	s.checkMirrors()
	close(watched)
	s.stop()
}

// ampleDedupEntries is more outcomes than any run has to remember at once: a dedup table with room
// for so many never gets full.
const ampleDedupEntries = 10_000

// recoveryTime bounds the time until service is back after the last fault. A small dedup table may
// be full: the store then refuses writes until it forgets outcomes, and all clients compete for the
// room. What piled up at the broker in an outage comes first: a leader that executes four requests
// at once needs half as long for it as the outage took, and so does one of which the broker takes
// one message at a time.
func (t *tunables) recoveryTime() time.Duration {
	usual := 10 * time.Second
	if t.front.Executing == fewExecuting || t.broker.receiveMaximum == 1 {
		usual += 15 * time.Second
	}
	if t.offer.Limits.DedupEntries < ampleDedupEntries {
		return usual + 3*t.outcomeLifetime()
	}
	return usual
}

// recoverWithin waits until the store serves, and records a violation if that takes longer than
// limit.
func (s *simulation) recoverWithin(prober *client, limit time.Duration, when string) {
	took, worked := prober.Probe(max(limit, time.Minute))
	s.recovered = took
	switch {
	case !worked:
		s.violation("recovery", "service was not back %v %s", took, when)
	case took > limit:
		s.violation("recovery", "service was back %v %s", took, when)
	}
}

// awaitVersion waits until the newest log version is in force on every node. Before that, the store
// refuses newer commands, and the checks do not allow for such refusals.
func (s *simulation) awaitVersion() {
	const limit = 30 * time.Second
	for began := time.Now(); time.Since(began) < limit; s.sleep(50 * time.Millisecond) {
		old := slices.ContainsFunc(s.hosts, func(h *host) bool {
			node := h.member()
			return node == nil || node.Status().State.Version != fsm.Version
		})
		if !old {
			return
		}
	}
	s.violation("recovery", "version %d of the log was not in force after %v", fsm.Version, limit)
}

// stop ends the nodes, the broker and the load, and waits for their goroutines.
func (s *simulation) stop() {
	s.load.End()
	for _, h := range s.hosts {
		h.mu.Lock()
		h.stopped = true
		h.mu.Unlock()
		h.kill(false)
	}
	s.broker.close()
	s.load.Wait()
}
