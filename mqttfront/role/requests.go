package role

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/pending"
)

// Requests are the requests of a node, and what it knows of the log. Both roles work on them. All methods are safe for concurrent use.
type Requests struct {
	config  *Config
	metrics *metrics.Metrics
	log     *slog.Logger
	ingest  ingestStrategy
	store   Store

	mu        sync.Mutex // guards all fields below
	role      role
	room      sync.Cond // admit waits on it until role.hasRoom; signalled when a request ends
	pending   pending.Buffer
	published uint64       // delivery watermark from the last applied entry
	termStart termStart    // where the log was when the current leader began to serve
	busy      int          // requests that the store has, or whose replies are being delivered
	shares    clientShares // the same, by client
	scans     scans
	// turnaround is what requests took lately from their arrival until the broker had the reply: a moving average.
	turnaround time.Duration
	limits     fsm.Limits
	version    uint32        // of the log, in force
	expiry     time.Duration // of notifications
	stopped    bool
	alone      bool      // the last result of Store.Alone: this node is the only member
	aloneAsked time.Time // when Store.Alone was called last
	// Requests that arrived in (staleFrom, staleTo] may be older than the dedup table remembers.
	staleFrom, staleTo time.Time
	fullAt             time.Time // when a request was last dropped because there was no room to hold it

	blocked atomic.Bool // admit waits for room; meanwhile nothing is read from the broker
}

// New returns the requests of a node that follows. SetStore gives them their store.
func New(config *Config, metrics *metrics.Metrics, log *slog.Logger) *Requests {
	settings := fsm.DefaultSettings()
	q := &Requests{
		config: config, metrics: metrics, log: log,
		pending: pending.NewBuffer(config.HoldMessages, config.HoldBytes), shares: newClientShares(config), scans: scans{byClient: make(map[string]scanCount)},
		ingest: ingestEverywhere{},
	}
	q.room.L = &q.mu
	if config.IngestAtLeader {
		q.ingest = ingestAtLeader{}
	}
	q.role = q.ingest.nonLeader(q)
	q.adoptLocked(&settings)
	return q
}

// SetStore gives the store, before any request comes.
func (q *Requests) SetStore(store Store) { q.store = store }

// Run removes expired requests and rechecks for duplicates once a second, until the context ends. After that no request is
// admitted.
func (q *Requests) Run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case now := <-ticker.C:
			q.giveUp(now)
			q.recheckPending()
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.room.Broadcast()
}

// Busy returns how many requests are executing or answering.
func (q *Requests) Busy() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.busy
}

// Blocked reports whether admit waits for room. Meanwhile nothing is read from the broker.
func (q *Requests) Blocked() bool { return q.blocked.Load() }

// Serving reports whether Leader.Begin has finished: new requests are proposed on arrival.
func (q *Requests) Serving() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, leads := q.role.(*Leader)
	return leads && l.serving
}

// aloneValid is for how long an answer of Store.Alone counts: asking costs more than all the rest of admitting a request.
const aloneValid = 10 * time.Millisecond

// onlyHolderLocked reports whether only this node and the broker have the requests that come here, or did so up to aloneValid ago.
func (q *Requests) onlyHolderLocked(now time.Time) bool {
	if since := now.Sub(q.aloneAsked); since < 0 || since > aloneValid {
		q.alone, q.aloneAsked = q.store.Alone(), now
	}
	return q.ingest.onlyHolder(q.alone)
}

func (q *Requests) leads() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.role.leads()
}

// endLocked removes a request from the buffer, and acknowledges it to the broker if admit has not done so. releaseLocked leaves it to the broker.
func (q *Requests) endLocked(r *pending.Request) {
	if !q.pending.Remove(r) {
		return
	}
	q.metrics.Held.Set(float64(q.pending.Len()))
	r.Done()
	q.room.Signal()
}

// releaseLocked drops a request that the broker still has.
func (q *Requests) releaseLocked(r *pending.Request) {
	r.Done = func() {}
	q.endLocked(r)
}

// keepFirstLocked removes the later one of two copies of a request, unless the store has it.
func (q *Requests) keepFirstLocked(r *pending.Request) {
	if later := q.pending.KeepFirst(r); later != nil {
		q.endLocked(later)
	}
}

// dropStaleLocked removes a request if it is stale, and reports whether it did.
func (q *Requests) dropStaleLocked(r *pending.Request) bool {
	if !q.isStaleLocked(r) {
		return false
	}
	q.metrics.HeldDropped.WithLabelValues("stale").Inc()
	q.endLocked(r)
	return true
}

// isStaleLocked reports whether a request arrived in (staleFrom, staleTo].
func (q *Requests) isStaleLocked(r *pending.Request) bool {
	return r.Arrived.After(q.staleFrom) && !r.Arrived.After(q.staleTo)
}

// fullShown is how long DroppedLately stays true after a drop.
const fullShown = 10 * time.Second

// DroppedLately reports whether there was no room for a request within the last 10 s.
func (q *Requests) DroppedLately() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Since(q.fullAt) < fullShown
}

// beginWorkLocked counts a request as executing or answering.
func (q *Requests) beginWorkLocked(r *pending.Request) {
	q.busy++
	q.shares.add(r.ClientKey(), r.Size)
}

// endWorkLocked ends what beginWorkLocked began.
func (q *Requests) endWorkLocked(r *pending.Request) {
	q.busy--
	q.shares.remove(r.ClientKey(), r.Size)
	q.scans.move(r.ClientKey(), &r.Scan, pending.ScanNone)
}

// requeueLocked makes a request wait for the next leadership.
func (q *Requests) requeueLocked(r *pending.Request) {
	r.MarkHeld()
	q.endWorkLocked(r)
	q.role.requeued(r)
}

// requeueMaybeAppliedLocked makes a request that was applied, or may have been, wait for the next leadership. The next leader
// finds its outcome by its identity. A write without an identity cannot be found and must not be proposed again: it is
// dropped unanswered.
func (q *Requests) requeueMaybeAppliedLocked(r *pending.Request) {
	q.requeueLocked(r)
	if r.State().IsHeld() && !r.Read && r.Command.ID.IsZero() {
		q.metrics.HeldDropped.WithLabelValues("outcome_unknown").Inc()
		q.endLocked(r)
	}
}

// adoptLocked takes up the settings that the front end needs to know.
func (q *Requests) adoptLocked(settings *fsm.Settings) {
	q.limits = settings.Limits
	q.expiry = time.Duration(settings.NotificationExpiry) * time.Millisecond
}

// appliedCommandLocked takes up the outcome of one command.
func (q *Requests) appliedCommandLocked(outcome *fsm.Outcome, i int, tags []any) {
	command := &outcome.Commands[i]
	q.version = max(q.version, command.Version)
	switch command.Kind {
	case fsm.KindConfigure:
		q.adoptLocked(command.Settings)
	case fsm.KindLeaderStart:
		q.termStart = termStart{term: outcome.Term, published: q.published, index: outcome.Index}
		q.pending.AwaitReports()
	}
	if tags != nil && tags[i] != nil {
		q.role.committed(tags[i].(*pending.Request), outcome, i)
	}
	q.learnAllLocked(outcome, i)
}

// learnAllLocked notes how the requests of a command ended.
func (q *Requests) learnAllLocked(outcome *fsm.Outcome, i int) {
	command, end := &outcome.Commands[i], pending.EndAnswered
	expected, now := q.role.expects(), time.Now()
	if outcome.Results[i].Code == fsm.CodeNoReply {
		end = pending.EndNoReply
	}
	if command.Kind != fsm.KindGet { // the leader reports an answered GET, even if it was in the log
		q.pending.Learn(command.ID, end, outcome.Index, expected, now)
	}
	for j := range command.Rejected {
		q.pending.Learn(command.Rejected[j].ID, end, outcome.Index, expected, now)
	}
}
