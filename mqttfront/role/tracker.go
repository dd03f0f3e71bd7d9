package role

import (
	"log/slog"
	"sync"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/pending"
)

// tracker has the requests of a node that are not known to be answered, and what the node knows of the log. All roles work on it. It knows none of
// them.
type tracker struct {
	config  *Config
	metrics *metrics.Metrics
	log     *slog.Logger
	ingest  ingestStrategy
	store   Store

	mu      sync.Mutex // guards all fields below, and the node's role
	room    sync.Cond  // a request that is to be admitted waits on it until there is room; signalled when a request ends
	pending pending.Buffer
	// unchecked says that the buffer may hold requests whose outcome is in the state, and that this node has not looked them up.
	unchecked bool
	known     logState
	load      load
	alone     aloneCache
	stale     staleRange
	fullAt    time.Time // when addPendingLocked last dropped a request because there was no room to hold it
}

// logState is what a node knows of the log from the entries that it applied.
type logState struct {
	published uint64    // delivery watermark from the last applied entry
	termStart termStart // where the log was when the current leader began to serve
	version   uint32    // of the log, in force
	limits    fsm.Limits
	expiry    time.Duration // of notifications
}

// adopt takes up the settings that the front end needs to know.
func (s *logState) adopt(settings *fsm.Settings) {
	s.limits = settings.Limits
	s.expiry = time.Duration(settings.NotificationExpiry) * time.Millisecond
}

// staleRange is the interval (from, to] of arrival times whose requests may be older than the dedup table remembers.
type staleRange struct{ from, to time.Time }

func (s staleRange) has(r *pending.Request) bool {
	return r.Arrived.After(s.from) && !r.Arrived.After(s.to)
}

// aloneCache keeps the last answer of Store.Alone. Asking costs more than all the rest of admitting a request.
type aloneCache struct {
	alone bool      // this node was the only member
	asked time.Time // zero: Store.Alone is asked at the next call
}

// aloneValid is for how long an answer of Store.Alone counts.
const aloneValid = 10 * time.Millisecond

// get reports whether this node is the only member, or was up to aloneValid ago.
func (c *aloneCache) get(now time.Time, ask func() bool) bool {
	if since := now.Sub(c.asked); since < 0 || since > aloneValid {
		c.alone, c.asked = ask(), now
	}
	return c.alone
}

func newTracker(config *Config, metrics *metrics.Metrics, log *slog.Logger) *tracker {
	t := &tracker{
		config: config, metrics: metrics, log: log, ingest: ingestEverywhere{},
		pending: pending.NewBuffer(config.HoldMessages, config.HoldBytes), load: newLoad(config),
	}
	t.room.L = &t.mu
	if config.IngestAtLeader {
		t.ingest = ingestAtLeader{}
	}
	settings := fsm.DefaultSettings()
	t.known.adopt(&settings)
	return t
}

// onlyHolderLocked reports whether only this node and the broker have the requests that come here, or did so up to aloneValid ago.
func (t *tracker) onlyHolderLocked(now time.Time) bool {
	return t.ingest.onlyHolder(t.alone.get(now, t.store.Alone))
}

// endLocked removes a request from the buffer, and acknowledges it to the broker if that has not been done. releaseLocked leaves it to the broker.
func (t *tracker) endLocked(r *pending.Request) {
	if !t.pending.Remove(r) {
		return
	}
	t.metrics.Held.Set(float64(t.pending.Len()))
	r.Done()
	t.room.Signal()
}

// releaseLocked drops a request that the broker still has.
func (t *tracker) releaseLocked(r *pending.Request) {
	r.Done = func() {}
	t.endLocked(r)
}

// keepFirstLocked removes the later one of two copies of a request, unless the store has it.
func (t *tracker) keepFirstLocked(r *pending.Request) {
	if later := t.pending.KeepFirst(r); later != nil {
		t.endLocked(later)
	}
}

// dropStaleLocked removes a request if it is stale, and reports whether it did.
func (t *tracker) dropStaleLocked(r *pending.Request) bool {
	if !t.stale.has(r) {
		return false
	}
	t.metrics.HeldDropped.WithLabelValues("stale").Inc()
	t.endLocked(r)
	return true
}

// dropRedeliveredLocked drops a request that the broker delivers again and that this node must not execute, and reports whether it did.
func (t *tracker) dropRedeliveredLocked(r *pending.Request) bool {
	if !r.Redelivered || r.Read || !t.ingest.rejectsRedelivery(r, t.expiredHereLocked(r), !t.pending.Hints().EndedAt(r.Command.ID, pending.EndNoReply).IsZero()) {
		return false
	}
	t.metrics.HeldDropped.WithLabelValues("outcome_unknown").Inc()
	r.Done()
	return true
}

// addPendingLocked adds a request to the buffer, and reports whether it did. If the buffer is full, it drops the request and acknowledges it to the broker.
func (t *tracker) addPendingLocked(r *pending.Request) bool {
	if t.pending.Full(r) {
		t.fullAt = time.Now()
		t.metrics.HeldDropped.WithLabelValues("full").Inc()
		r.Done()
		return false
	}
	if earlier := t.pending.Get(r.Command.ID); earlier != nil && !earlier.IsOpen() {
		r.MarkDuplicate() // an earlier copy has an outcome, or must not be executed; dedup may have forgotten it when this entry is applied
	}
	t.pending.Add(r)
	t.metrics.Held.Set(float64(t.pending.Len()))
	if !t.onlyHolderLocked(r.Arrived) { // the only holder acknowledges after the reply, so that the broker delivers the request again after a crash
		r.Done()
		r.Done = func() {}
	}
	return true
}

// followLocked takes up what a command of an applied entry says of the log itself.
func (t *tracker) followLocked(outcome *fsm.EntryOutcome, command *fsm.Command) {
	t.known.version = max(t.known.version, command.Version)
	switch command.Kind {
	case fsm.KindConfigure:
		t.known.adopt(command.Settings)
	case fsm.KindLeaderStart:
		t.known.termStart = termStart{term: outcome.Term, published: t.known.published, index: outcome.Index}
		t.pending.AwaitReports()
	}
}

// learnLocked notes how the requests of command i of an applied entry ended. expected says that such requests are held here, or are still to come.
func (t *tracker) learnLocked(outcome *fsm.EntryOutcome, i int, expected bool) {
	command, end, now := &outcome.Commands[i], pending.EndAnswered, time.Now()
	if outcome.Results[i].Code == fsm.CodeNoReply {
		end = pending.EndNoReply
	}
	if command.Kind != fsm.KindGet { // the leader reports an answered GET, even if it was in the log
		t.pending.Learn(command.ID, end, outcome.Index, expected, now)
	}
	for j := range command.Rejected {
		t.pending.Learn(command.Rejected[j].ID, end, outcome.Index, expected, now)
	}
}
