package role

import (
	"context"
	"log/slog"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/pending"
)

// Dispatcher passes arriving requests, and the outcomes of applied log entries, to the node's role. All exported methods but SetStore are safe for
// concurrent use.
type Dispatcher struct {
	*tracker
	role    role // guarded by tracker.mu
	stopped bool // guarded by tracker.mu: no request is admitted any more
}

// NewDispatcher returns the dispatcher of a node that does not lead. SetStore gives it its store.
func NewDispatcher(config *Config, metrics *metrics.Metrics, log *slog.Logger) *Dispatcher {
	t := newTracker(config, metrics, log)
	return &Dispatcher{tracker: t, role: nonLeader(t)}
}

// NewLeader returns a leader that does not serve yet. deliveringSince is NodeSession.DeliveringSince of the node's own session.
func (d *Dispatcher) NewLeader(barrier *ingest.Barrier, deliveringSince func() time.Time, clients *Clients) *Leader {
	return &Leader{tracker: d.tracker, barrier: barrier, deliveringSince: deliveringSince, clients: clients}
}

// NewClients returns Clients that use a driver.
func (d *Dispatcher) NewClients(driver broker.Driver) *Clients {
	metrics, log := d.metrics, d.log
	return &Clients{
		mayWatch: d.mayWatch, propose: d.propose, count: func(result string) { metrics.Disconnects.WithLabelValues(result).Inc() },
		kicker:     broker.NewKicker(driver, func(result string) { metrics.Kicked.WithLabelValues(result).Inc() }, log),
		subscriber: broker.NewSubscriber(driver, func(result string) { metrics.Subscribed.WithLabelValues(result).Inc() }, log),
	}
}

// mayWatch reports whether a client watches a key, or has requests on their way through the log, which may make it watch one.
func (d *Dispatcher) mayWatch(clientID string) (watches bool) {
	d.mu.Lock()
	writes := d.pending.Proposals(clientID)
	d.mu.Unlock()
	if writes > 0 {
		return true
	}
	d.store.View(func(m *fsm.Machine) { watches = m.HasWatches(clientID) })
	return watches
}

// propose proposes a command that no request waits for.
func (d *Dispatcher) propose(command fsm.Command) {
	d.store.Propose(command, nil)
	d.store.Flush()
}

// Flush calls Store.Flush.
func (d *Dispatcher) Flush() { d.store.Flush() }

// CountIgnored counts a message on the invoke topic that is not executed.
func (d *Dispatcher) CountIgnored(reason string) {
	d.metrics.Ignored.WithLabelValues(reason).Inc()
	d.log.Debug("message on the invoke topic is not executed", "reason", reason)
}

// SetStore gives the store, before any request comes.
func (d *Dispatcher) SetStore(store Store) { d.store = store }

// Run removes expired requests and rechecks for duplicates once a second, until the context ends. After that no request is
// admitted.
func (d *Dispatcher) Run(ctx context.Context) {
	every(ctx, time.Second, func(now time.Time) {
		d.removeExpired(now)
		d.recheckPending()
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	d.room.Broadcast()
}

// Busy returns how many requests are executing or answering.
func (d *Dispatcher) Busy() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.load.busy
}

// Blocked reports whether a request waits for room. Meanwhile nothing is read from the broker.
func (d *Dispatcher) Blocked() bool { return d.blocked.Load() }

// Accepting reports whether BeginLeading has finished: new requests are proposed on arrival.
func (d *Dispatcher) Accepting() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, leads := d.role.(*Leader)
	return leads && l.serving
}

// droppedLatelyFor is how long DroppedLately stays true after a drop.
const droppedLatelyFor = 10 * time.Second

// DroppedLately reports whether there was no room for a request within the last 10 s.
func (d *Dispatcher) DroppedLately() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.fullAt) < droppedLatelyFor
}

// Leads reports whether the node's role is a Leader.
func (d *Dispatcher) Leads() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.role.leadsLocked()
}

// recheckPending marks duplicates among the requests of a node that does not lead.
func (d *Dispatcher) recheckPending() {
	d.store.View(func(m *fsm.Machine) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.role.leadsLocked() {
			d.recheckPendingLocked(m)
		}
	})
}

// Admit waits for room and passes a request to the node's role. If the node stops or the context ends, it leaves the request unacknowledged.
func (d *Dispatcher) Admit(ctx context.Context, r *pending.Request) {
	found := d.dedupLookup(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	// The leader, and a node that is the only holder, block here until there is room: TCP backpressure.
	for !d.stopped && !d.role.hasRoomLocked(r) {
		d.blocked.Store(true)
		d.alone.asked = time.Time{} // ask again after the wait, which may take long
		d.store.Flush()
		d.room.Wait()
	}
	d.blocked.Store(false)
	if d.stopped || ctx.Err() != nil {
		return // not acknowledged: the broker still has it
	}
	d.role.admitLocked(r, found)
}

// dedupLookup marks a request that has just come as a duplicate if the state has its outcome. A node that missed log entries learns that only from the state.
// A leader skips the lookup: the state machine deduplicates when it applies.
func (d *Dispatcher) dedupLookup(r *pending.Request) (found dedupResult) {
	if r.Command.ID.IsZero() || r.Read {
		return dedupResult{checked: true}
	}
	if d.Leads() {
		return dedupResult{}
	}
	return dedupResult{checked: true, index: d.markIfKnown(r)}
}

// DropSince removes the held requests that arrived after a moment, until now. It sets the stale range to this interval. So a request of the interval that the
// store or a publish queue has is removed when it is held again. A second call replaces the range.
func (d *Dispatcher) DropSince(moment time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stale = staleRange{moment, time.Now()}
	for r := range d.pending.All() {
		if r.State().IsHeld() {
			d.dropStaleLocked(r)
		}
	}
}

// ForgetArrivals is called when a session begins. It forgets which copies of answered requests are still expected: a new session does not bring them.
func (d *Dispatcher) ForgetArrivals() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending.Hints().ForgetArrivals()
}

// CoalescingDelay returns for how long messages from the broker may gather before they are read.
func (d *Dispatcher) CoalescingDelay() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.role.coalescingDelayLocked()
}
