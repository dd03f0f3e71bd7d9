package leader

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/metrics"
)

// Dispatcher passes arriving requests, and the outcomes of applied log entries, to the Leader of
// the present leadership. All methods but SetStore are safe for concurrent use.
type Dispatcher struct {
	config  *Config
	metrics *metrics.Metrics
	log     *slog.Logger
	store   Store

	leaderships atomic.Uint64          // how many there were in this process
	current     atomic.Pointer[Leader] // nil while the node does not lead
}

// NewDispatcher returns the dispatcher of a node that does not lead. SetStore gives it its store.
func NewDispatcher(config *Config, metrics *metrics.Metrics, log *slog.Logger) *Dispatcher {
	return &Dispatcher{config: config, metrics: metrics, log: log}
}

// SetStore gives the store, before any request comes.
func (d *Dispatcher) SetStore(store Store) { d.store = store }

// NewLeader returns the leader of a leadership that has not begun. reconnect ends the connection by
// which requests come.
func (d *Dispatcher) NewLeader(clients *Clients, reconnect func(reason error)) *Leader {
	l := &Leader{
		number: d.leaderships.Add(1), config: d.config, metrics: d.metrics, log: d.log,
		store: d.store, limitsTold: make(map[fsm.Limit]time.Time),
		clients:   clients,
		reconnect: reconnect, load: newLoad(d.config), proposals: make(map[string]int),
	}
	l.room.L = &l.mu
	return l
}

// NewClients returns Clients that use a driver.
func (d *Dispatcher) NewClients(driver broker.Driver) *Clients {
	metrics, log := d.metrics, d.log
	return &Clients{
		mayWatch: d.mayWatch, propose: d.propose,
		count: func(result string) { metrics.Disconnects.WithLabelValues(result).Inc() },
		kicker: broker.NewKicker(driver,
			func(result string) { metrics.Kicked.WithLabelValues(result).Inc() }, log),
		subscriber: broker.NewSubscriber(driver,
			func(result string) { metrics.Subscribed.WithLabelValues(result).Inc() }, log),
	}
}

// Begin makes l the leader. It queues the notifications that earlier leaders did not publish.
// sender takes all outputs.
func (d *Dispatcher) Begin(l *Leader, sender Sender) {
	d.store.View(func(m *fsm.Machine) {
		l.begin(m, sender)
		d.current.Store(l)
	})
}

// Lead does what is periodic until the context ends. Then the node has no leader any more. Begin
// must have returned.
func (d *Dispatcher) Lead(ctx context.Context, l *Leader) {
	var working sync.WaitGroup
	working.Go(func() { l.watchOver(ctx) })
	<-ctx.Done()
	d.current.Store(nil)
	l.end()
	d.metrics.UnderWay.Set(0)
	working.Wait()
}

// mayWatch reports whether a client watches a key, or has requests on their way through the log,
// which may make it watch one.
func (d *Dispatcher) mayWatch(clientID string) (watches bool) {
	if l := d.current.Load(); l != nil {
		l.mu.Lock()
		writes := l.proposals[clientID]
		l.mu.Unlock()
		if writes > 0 {
			return true
		}
	}
	d.store.View(func(m *fsm.Machine) { watches = m.HasWatches(clientID) })
	return watches
}

// propose proposes a command that no request waits for.
func (d *Dispatcher) propose(command fsm.Command) {
	d.store.Propose(command, nil)
	d.store.Flush()
}

// Leads reports whether the node leads and executes requests.
func (d *Dispatcher) Leads() bool { return d.current.Load() != nil }

// Busy returns how many requests are under way.
func (d *Dispatcher) Busy() int {
	l := d.current.Load()
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.load.requests
}

// Blocked implements Admission.
func (d *Dispatcher) Blocked() bool {
	l := d.current.Load()
	return l != nil && l.blocked.Load()
}

// Admit implements Admission.
func (d *Dispatcher) Admit(ctx context.Context, r *Request) {
	if l := d.current.Load(); l != nil {
		l.admit(ctx, r)
	}
}

// CountIgnored implements Admission.
func (d *Dispatcher) CountIgnored(reason string) {
	d.metrics.Ignored.WithLabelValues(reason).Inc()
	d.log.Debug("message on the invoke topic is not executed", "reason", reason)
}

// Flush implements Admission.
func (d *Dispatcher) Flush() { d.store.Flush() }

// CoalescingDelay implements Admission.
func (d *Dispatcher) CoalescingDelay() time.Duration {
	if l := d.current.Load(); l != nil {
		return l.coalescingDelay()
	}
	return 0
}

// The methods below implement what cluster.Observer asks of the front end.

// Applied passes an applied log entry to the leader: the changes of watched keys and the outcomes
// of commands, in the order of the entry. The notifications of a command's changes come before its
// reply.
func (d *Dispatcher) Applied(outcome *fsm.EntryOutcome, tags []any) {
	if l := d.current.Load(); l != nil {
		l.applied(outcome, tags)
	}
}

// ReadDone passes the result of a GET or a SCAN to the leader.
func (d *Dispatcher) ReadDone(tag any, result fsm.Result) {
	if l := d.current.Load(); l != nil {
		l.readDone(tag.(*Request), &result)
	}
}

// Failed is called for a command that has no result. Its client gets no reply: the broker delivers
// the request again, unless it is invalid.
func (d *Dispatcher) Failed(tag any, invalid bool) {
	if l := d.current.Load(); l != nil {
		l.failed(tag.(*Request), invalid)
	}
}
