package leader

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/outbox"
	"holdfast/mqttfront/session"
)

// Store is the replicated state machine, as the front end uses it. If Propose or Read returns true,
// the tag comes back exactly once, through Applied, ReadDone or Failed of Dispatcher.
type Store interface {
	// Propose queues a command for the log and reports whether this node took it up. The caller
	// calls Flush after the last command of a burst.
	Propose(command fsm.Command, tag any) bool
	// Read queues a GET or a SCAN and reports whether this node took it up. It is read after the
	// next Flush.
	Read(command *fsm.Command, tag any) bool
	// Flush makes the store process what is queued: the commands of a burst make one log entry, and
	// its reads one round of reads.
	Flush()
	// Confirm returns nil when this node led at some moment after the call.
	Confirm(ctx context.Context) error
	// View runs f with the state, never concurrently with Applied or Restored. Other Views and
	// ReadDone may run at the same time.
	View(f func(*fsm.Machine))
	session.Log
	// SetPublished raises the delivery watermark: no notification of an entry up to the log index
	// is outstanding.
	SetPublished(index uint64)
}

// Sender queues what a leader publishes. It is safe for concurrent use.
type Sender interface {
	// Send queues an output on the connection on which its client receives everything, and returns
	// the outputs that are given up because of it.
	Send(client string, o *outbox.Output) (givenUp []*outbox.Output)
	// MaxPacket returns the size in bytes of the largest packet that the broker accepts;
	// math.MaxInt64 without a limit.
	MaxPacket() int64
}

// Leader executes and answers requests in one leadership, from Dispatcher.Begin until
// Dispatcher.Lead ends. It is a outbox.Handler. Its exported methods are safe for concurrent use.
type Leader struct {
	number  uint64 // of this leadership, in this process
	config  *Config
	metrics *metrics.Metrics
	log     *slog.Logger
	store   Store
	clients *Clients
	// reconnect ends the connection of the cluster's session, so that the broker delivers again
	// what was given back.
	reconnect func(reason error)
	blocked   atomic.Bool // a request waits for room

	mu sync.Mutex // guards the fields below
	// a request that is to be admitted waits on it until there is room; signalled when a request
	// ends
	room   sync.Cond
	ended  bool // the leadership has
	sender Sender
	known  logState
	load   load
	// proposals has, by client, the proposals without a result yet. They include GETs that wait for
	// a write, the no-ops of SCANs, and refusals.
	proposals map[string]int
	watermark outbox.Watermark // of notifications: a reply comes again with its request
	// delivering has the requests whose reply the broker has not acknowledged, in the order in
	// which their replies were queued.
	delivering requests
	// givenUp has the indexes of notifications that were given up at once. The delivery watermark
	// moves past them when the others of the entry are added (passGivenUpLocked).
	givenUp []uint64
	tests   watchTests
	// limitsTold has when the log said last that a limit was met.
	limitsTold map[fsm.Limit]time.Time
}

// logState is what a leader knows of the log.
type logState struct {
	limits fsm.Limits
	expiry time.Duration // of notifications
}

// adopt copies the settings that the front end uses.
func (s *logState) adopt(settings *fsm.Settings) {
	s.limits = settings.Limits
	s.expiry = time.Duration(settings.NotificationExpiry) * time.Millisecond
}

// begin takes up the notifications that earlier leaders did not publish. It runs in View, so the
// state does not change.
func (l *Leader) begin(m *fsm.Machine, sender Sender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sender = sender
	status := m.Status()
	settings, _ := m.Settings()
	l.known.adopt(&settings)
	for _, event := range m.Unpublished() {
		l.notifyLocked(&event, time.Duration(status.Now-event.At)*time.Millisecond)
	}
	l.passGivenUpLocked()
}

// end ends the leadership. What the broker has no reply of yet is not acknowledged.
func (l *Leader) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.room.Broadcast()
}

// admit waits for room and executes a request. If the leadership or the context ends, it leaves the
// request unacknowledged.
func (l *Leader) admit(ctx context.Context, r *Request) {
	r.leadership = l.number
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasRoomLocked(r) {
		l.awaitRoomLocked(ctx, r) // TCP backpressure
	}
	if l.ended || ctx.Err() != nil {
		return // the broker still has it
	}
	if r.Redelivered && r.isWrite() && r.Command.ID.IsZero() {
		// an earlier leader may have executed it, and the log does not know it
		l.metrics.Dropped.WithLabelValues("outcome_unknown").Inc()
		r.Done()
		return
	}
	l.executeLocked(r)
}

func (l *Leader) hasRoomLocked(r *Request) bool {
	return l.load.requests == 0 || l.load.requests < l.config.Executing && l.load.bytes+
		r.Size <= l.config.RequestBytes
}

func (l *Leader) awaitRoomLocked(ctx context.Context, r *Request) {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.room.Broadcast()
	})
	defer stop()
	l.blocked.Store(true)
	defer l.blocked.Store(false)
	for !l.ended && ctx.Err() == nil && !l.hasRoomLocked(r) {
		l.store.Flush()
		l.room.Wait()
	}
}

// hasLocked reports whether a request is under way in this leadership.
func (l *Leader) hasLocked(r *Request) bool { return !l.ended && r.leadership == l.number }

// endLocked ends a request, and acknowledges it to the broker.
func (l *Leader) endLocked(r *Request) {
	l.endProposalLocked(r)
	if r.state == stateDelivering {
		l.delivering.remove(r)
	}
	r.state = stateDone
	r.Done()
	l.load.remove(r)
	l.metrics.UnderWay.Set(float64(l.load.requests))
	// and not Signal: the room may suffice for one waiting request and not for another
	l.room.Broadcast()
}

// endStuck ends the requests whose reply the broker has not acknowledged for longer than
// Config.MaxAge. PUBACKs go in order: one reply that is never taken would close the window for
// everybody. Its client has to take the outcome for unknown.
func (l *Leader) endStuck(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := l.delivering.first; r != nil && !l.ended &&
		now.Sub(r.queued) > l.config.MaxAge; r = l.delivering.first {
		l.metrics.Dropped.WithLabelValues("stuck").Inc()
		l.endLocked(r)
	}
}

// errGivenBack says that the store gave a request back.
var errGivenBack = errors.New("the store has not executed a request: it has to come again")

// givenBackLocked forgets a request that has no result, and has the broker deliver it again, with
// all that came behind it and has not ended.
func (l *Leader) givenBackLocked(r *Request) {
	r.Done = func() {}
	l.endLocked(r)
	l.reconnect(errGivenBack)
}

// beginProposalLocked records that a request was submitted to the log: its client's reads must not
// overtake it.
func (l *Leader) beginProposalLocked(r *Request) {
	l.proposals[r.clientKey()]++
	r.proposed = true
}

// endProposalLocked ends what beginProposalLocked began, if it did.
func (l *Leader) endProposalLocked(r *Request) {
	if !r.proposed {
		return
	}
	r.proposed = false
	if l.proposals[r.clientKey()]--; l.proposals[r.clientKey()] == 0 {
		delete(l.proposals, r.clientKey())
	}
}

// mayReadLocked reports whether no request of the read's client is on its way through the log: a
// read must not overtake a write. A read without a client id may be any client's, so it waits for
// those of all clients.
func (l *Leader) mayReadLocked(r *Request) bool {
	if r.Command.Principal.ClientID == "" {
		return len(l.proposals) == 0
	}
	return l.proposals[r.clientKey()] == 0
}

const (
	longestDelay = 20 * time.Millisecond // the longest coalescing delay
	// the delay is at most load.turnaround divided by delayShare
	delayShare = 4
	enoughToDo = 16 // with fewer requests under way there is no delay
)

// coalescingDelay returns for how long messages from the broker may gather before they are read.
func (l *Leader) coalescingDelay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.load.requests < enoughToDo {
		return 0
	}
	return min(longestDelay, l.load.turnaround/delayShare)
}
