package role

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/pending"
)

// tracker has the requests of a node that are not known to be answered, and what the node knows of the log. All roles work on it. It does not depend on
// any role.
type tracker struct {
	config  *Config
	metrics *metrics.Metrics
	log     *slog.Logger
	ingest  ingestStrategy
	store   Store

	blocked atomic.Bool // a request waits for room

	mu      sync.Mutex // guards all fields below, and the node's role
	room    sync.Cond  // a request that is to be admitted waits on it until there is room; signalled when a request ends
	pending pending.Buffer
	// unchecked says that the buffer may hold requests whose outcome is in the state, and that this node has not looked them up.
	unchecked bool
	known     logState
	load      load
	alone     aloneCache
	stale     staleRange
	fullAt    time.Time // when addPendingLocked last dropped a request because the buffer was full
}

// logState is what a node knows of the log: from the entries that it applied, from a snapshot that was restored, and from the state when it begins to lead.
type logState struct {
	published uint64    // highest delivery watermark of the applied entries
	termStart termStart // where the log was when the current leader began to serve
	version   uint32    // of the log, in force
	limits    fsm.Limits
	expiry    time.Duration // of notifications
}

// adopt copies the settings that the front end uses.
func (s *logState) adopt(settings *fsm.Settings) {
	s.limits = settings.Limits
	s.expiry = time.Duration(settings.NotificationExpiry) * time.Millisecond
}

// staleRange is the interval (from, to] of arrival times whose requests may be older than the dedup table remembers.
type staleRange struct{ from, to time.Time }

func (s staleRange) has(r *pending.Request) bool {
	return r.Arrived.After(s.from) && !r.Arrived.After(s.to)
}

// aloneCache keeps the last answer of Store.Alone, which costs more than the rest of admitting a request.
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

// onlyHolderLocked reports whether no other node has the requests that this node receives. The answer may be up to aloneValid old.
func (t *tracker) onlyHolderLocked(now time.Time) bool {
	return t.ingest.onlyHolder(t.alone.get(now, t.store.Alone))
}

// endLocked removes a request from the buffer, and acknowledges it to the broker if that has not been done.
func (t *tracker) endLocked(r *pending.Request) {
	if !t.pending.Remove(r) {
		return
	}
	t.metrics.Held.Set(float64(t.pending.Len()))
	r.Done()
	t.room.Broadcast() // and not Signal: the room may suffice for one waiting request and not for another
}

// releaseLocked removes a request from the buffer without an acknowledgement, so that the broker delivers it again.
func (t *tracker) releaseLocked(r *pending.Request) {
	r.Done = func() {}
	t.endLocked(r)
}

// keepFirstLocked removes the later one of two copies of a request, unless the store or a publish queue has it.
func (t *tracker) keepFirstLocked(r *pending.Request) {
	if later := t.pending.KeepFirst(r); later != nil {
		t.endLocked(later)
	}
}

// dropStaleLocked removes and acknowledges a request if it is stale, and reports whether it did.
func (t *tracker) dropStaleLocked(r *pending.Request) bool {
	if !t.stale.has(r) {
		return false
	}
	t.metrics.HeldDropped.WithLabelValues("stale").Inc()
	t.endLocked(r)
	return true
}

// dropRedeliveredLocked acknowledges and drops a redelivered write that this node must not execute, and reports whether it did.
func (t *tracker) dropRedeliveredLocked(r *pending.Request) bool {
	if !r.Redelivered || r.Read || !t.ingest.rejectsRedelivery(r, t.expiredHereLocked(r), !t.pending.Hints().EndedAt(r.Command.ID, pending.EndNoReply).IsZero()) {
		return false
	}
	t.metrics.HeldDropped.WithLabelValues("outcome_unknown").Inc()
	r.Done()
	return true
}

// expiredHereLocked reports whether an earlier copy of a request expired before this node executed it.
func (t *tracker) expiredHereLocked(r *pending.Request) bool {
	earlier := t.pending.Get(r.Command.ID)
	held := earlier != nil && earlier.State().IsHeld() && earlier.IsOpen() && earlier.Expired(r.Arrived)
	return held || !t.pending.Hints().EndedAt(r.Command.ID, pending.EndExpired).IsZero()
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
		r.MarkDuplicate() // an earlier copy has an outcome, or must not be executed: the dedup table may have forgotten that when an entry of this copy is applied
	}
	t.pending.Add(r)
	t.metrics.Held.Set(float64(t.pending.Len()))
	if !t.onlyHolderLocked(r.Arrived) { // the only holder acknowledges after the reply, so that the broker delivers the request again after a crash
		r.Done()
		r.Done = func() {}
	}
	return true
}

// updateLogStateLocked updates known from a command of an applied entry.
func (t *tracker) updateLogStateLocked(outcome *fsm.EntryOutcome, command *fsm.Command) {
	t.known.version = max(t.known.version, command.Version)
	switch command.Kind {
	case fsm.KindConfigure:
		t.known.adopt(command.Settings)
	case fsm.KindLeaderStart:
		t.known.termStart = termStart{term: outcome.Term, published: t.known.published, index: outcome.Index}
		t.pending.AwaitReports()
	}
}

// recordEndLocked records how the requests of command i of an applied entry ended. expected says that this node holds them, or will receive them.
func (t *tracker) recordEndLocked(outcome *fsm.EntryOutcome, i int, expected bool) {
	command, end, now := &outcome.Commands[i], pending.EndAnswered, time.Now()
	if outcome.Results[i].Code == fsm.CodeNoReply {
		end = pending.EndNoReply
	}
	if command.Kind != fsm.KindGet { // a GET ends by the leader's report, even if it has a log entry
		t.pending.RecordEnd(command.ID, end, outcome.Index, expected, now)
	}
	for j := range command.Rejected { // one at most: see fsm.Command.Refusal
		t.pending.RecordEnd(command.Rejected[j].ID, end, outcome.Index, expected, now)
	}
}
