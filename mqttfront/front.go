package mqttfront

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/publish"
	"holdfast/mqttfront/wire"
)

// Front is the MQTT side of one node. Run receives, Serve answers while the node leads; Applied, ReadDone and Failed are
// called by the store. All methods are safe for concurrent use.
type Front struct {
	config  Config
	world   World
	store   Store
	decoder wire.Decoder

	hasStore chan struct{} // closed when store is set
	drain    chan struct{} // closed when nothing more is taken up
	once     sync.Once
	barrier  *barrier

	disconnects *broker.Feed
	kicker      *broker.Kicker
	subscriber  *broker.Subscriber
	outbox      *publish.Outbox

	mode ingestMode

	mu      sync.Mutex
	role    role
	room    sync.Cond // somebody waits to hand a request to the store
	pending pending
	mark    uint64       // the published mark, as the log has it
	applied uint64       // index of the last entry that the store told of
	busy    int          // requests executing or answering
	shares  clientShares // of the same, by client
	// turnaround is what requests took lately from their arrival until the broker had the reply: a moving average.
	turnaround         time.Duration
	limits             fsm.Limits
	version            uint32        // of the log, in force
	expiry             time.Duration // of notifications
	stopped            bool
	upSince            time.Time // the node's own session is up or down since then
	freshAt            time.Time // when the last fresh probe came
	staleFrom, staleTo time.Time // what arrived between the two is old, whatever it says
	fullAt             time.Time // when a request was last dropped because there was no room to hold it
	started            time.Time

	pushesBack atomic.Bool  // a request waits for room, and whatever comes from the broker behind it
	backlog    atomic.Bool  // what comes from the broker is old
	heard      atomic.Int64 // when the broker last sent anything by the node's own session: nanoseconds since started
	session    string       // what the ingest session is doing, for people
	up         bool         // the ingest session is
}

// New returns a front end for a store, which may be given later by SetStore: the store needs the front end, too.
func New(config Config, world World) (*Front, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	settings := fsm.DefaultSettings()
	f := &Front{
		config: config, world: world, decoder: config.decoder(), mode: ingestEverywhere{}, role: follower{}, barrier: newBarrier(),
		hasStore: make(chan struct{}), drain: make(chan struct{}), pending: newPending(&config), shares: newClientShares(&config),
		limits: settings.Limits, expiry: time.Duration(settings.NotificationExpiry) * time.Millisecond, session: "not connected yet",
		upSince: time.Now(), started: time.Now(),
	}
	if config.FollowLeader {
		f.mode = &ingestAtLeader{}
	}
	f.room.L = &f.mu
	metrics, log := world.Metrics, world.Log
	f.disconnects = broker.NewFeed(world.Driver, func(ctx context.Context) { f.pause(ctx, config.BackoffMax) }, metrics.disconnects.WithLabelValues("dropped").Inc, log)
	f.kicker = broker.NewKicker(world.Driver, func(result string) { metrics.kicked.WithLabelValues(result).Inc() }, log)
	f.subscriber = broker.NewSubscriber(world.Driver, func(result string) { metrics.subscribed.WithLabelValues(result).Inc() }, log)
	f.outbox = publish.NewOutbox(publish.Config{
		Cluster: config.Cluster, Connections: config.Publishers, Notifications: config.QueueNotifications, Bytes: config.QueueBytes,
		BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	}, publish.World{
		Connect: f.connectPublisher, Confirm: func(ctx context.Context) error { return f.store.Confirm(ctx) }, Pause: f.pause,
		SessionUpSince: f.sessionUpSince, TrustedIdentity: world.Driver.TrustedIdentity, Log: log, Metrics: metrics.Publish,
	})
	return f, nil
}

// SetStore gives the front end its store. It is called once, before Run; Serve waits for it.
func (f *Front) SetStore(store Store) {
	f.store = store
	close(f.hasStore)
}

// Run receives requests until the context ends. It returns an error only when the node cannot go on.
func (f *Front) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	workers.Go(func() { f.expireHeld(ctx) })
	workers.Go(func() { f.disconnects.Run(ctx) })
	workers.Go(func() { f.kicker.Run(ctx) })
	workers.Go(func() { f.subscriber.Run(ctx) })
	workers.Go(func() {
		if err := f.receive(ctx); err != nil {
			cancel(err)
		}
	})
	<-ctx.Done()
	f.mu.Lock()
	f.stopped = true
	f.room.Broadcast()
	f.mu.Unlock()
	workers.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

const (
	// followerDelay is how long a follower lets requests gather. It only holds them, so no client waits longer for that.
	followerDelay = 5 * time.Millisecond
	// leaderDelay is how long they may gather where they are answered, while there is enough to do; and it is at most one part in
	// restShare of the time that a request takes as it is.
	leaderDelay = 20 * time.Millisecond
	delayShare  = 4
	enoughToDo  = 16
)

// coalescingDelay returns for how long what comes from the broker may gather before it is read.
func (f *Front) coalescingDelay() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.role.coalescingDelay(f)
}

// heardFresh notes that a probe has returned that was sent at a moment not long ago.
func (f *Front) heardFresh(sent time.Time) {
	f.barrier.pass(sent)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.freshAt = time.Now()
}

// dropSinceFresh lets go of what came since the last fresh probe: it lay in a queue or in a socket for so long that deduplication
// may have forgotten it, whatever time this node thinks that it arrived.
func (f *Front) dropSinceFresh() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.staleFrom, f.staleTo = f.freshAt, time.Now()
	for r := range f.pending.all() {
		if r.state.isHeld() {
			f.dropStale(r)
		}
	}
}

// dropStale removes a request if it is stale, and reports whether it did. It needs Front.mu.
func (f *Front) dropStale(r *request) bool {
	if !f.isStale(r) {
		return false
	}
	f.world.Metrics.heldDropped.WithLabelValues("stale").Inc()
	f.end(r)
	return true
}

// isStale reports whether a request came when what came was old. f.mu is held.
func (f *Front) isStale(r *request) bool {
	return r.arrived.After(f.staleFrom) && !r.arrived.After(f.staleTo)
}

// fullShown is how long a node that had to drop a request says so.
const fullShown = 10 * time.Second

// Ready returns nil when the ingest session is up, else what is wrong.
func (f *Front) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.up || f.silence(time.Now()) > silent:
		return fmt.Errorf("broker session: %s", f.session)
	case time.Since(f.fullAt) < fullShown:
		return errors.New("the hold buffer is full")
	default:
		return f.mode.ready(f, time.Now())
	}
}

// Serving reports whether requests are answered here as they come.
func (f *Front) Serving() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, leads := f.role.(*leader)
	return leads && l.open
}

// Drain takes up no more requests and waits until those that were are answered, or the context ends. What was received
// besides is not acknowledged: the broker keeps it for whoever comes next.
func (f *Front) Drain(ctx context.Context) {
	f.once.Do(func() { close(f.drain) })
	const poll = 5 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		f.mu.Lock()
		busy := f.busy
		f.mu.Unlock()
		if busy == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// take decodes what was received, and takes it in.
func (f *Front) take(ctx context.Context, message mqttconn.Message, arrived time.Time, done func()) {
	r := &request{arrived: arrived, sent: arrived, redelivered: message.Redelivered}
	origin := f.world.Driver.Origin(message.Publish)
	ttl, verdict, reason := f.decoder.Decode(message.Publish, arrived, origin.QoS, &r.Request)
	if reason != "" {
		f.world.Metrics.ignored.WithLabelValues(reason).Inc()
	}
	switch verdict {
	case wire.VerdictIgnore:
		f.world.Log.Debug("message on the invoke topic is not executed", "reason", reason)
		done()
	case wire.VerdictKick:
		done()
		f.kick(&r.Request)
	default:
		r.done, r.holdUntil, r.Command.BrokerTime = done, arrived.Add(ttl), origin.Time
		if !r.Deadline.IsZero() {
			r.sent = r.Deadline
		}
		r.Size = max(r.Size, wire.RequestOverhead+message.Size) // the request keeps all of the packet that it points into
		f.admit(ctx, r)
	}
}

// expireHeld gives up what nobody waits for any more.
func (f *Front) expireHeld(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			f.giveUp(now)
			f.recheckPending()
		}
	}
}

func (f *Front) giveUp(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending.hints.forget(now)
	for r := range f.pending.all() {
		if r.state.isHeld() && now.After(r.holdUntil) {
			if r.outcome == 0 {
				f.world.Metrics.heldDropped.WithLabelValues("expired").Inc()
				f.noteExpired(r)
			}
			f.end(r)
		}
	}
}

// pause waits, with jitter, or until the context ends.
func (f *Front) pause(ctx context.Context, d time.Duration) {
	jittered := d/2 + time.Duration(f.world.Random()%uint64(d/2+1))
	timer := time.NewTimer(jittered)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
