package mqttfront

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
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

	hasStore         chan struct{} // closed when store is set
	drain            chan struct{} // closed when nothing more is taken up
	once             sync.Once
	barrier          *ingest.Barrier
	login            *mqttconn.Login
	session          *ingest.NodeSession
	newLeaderSession func() *ingest.LeaderSession // nil where each node's own session brings requests

	disconnects *broker.Feed
	kicker      *broker.Kicker
	subscriber  *broker.Subscriber
	outbox      *publish.Outbox

	mode ingestMode

	mu      sync.Mutex
	role    role
	room    sync.Cond // somebody waits to hand a request to the store
	pending pending.Buffer
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
	staleFrom, staleTo time.Time // what arrived between the two is old, whatever it says
	fullAt             time.Time // when a request was last dropped because there was no room to hold it

	pushesBack atomic.Bool // a request waits for room, and whatever comes from the broker behind it
}

// New returns a front end for a store, which may be given later by SetStore: the store needs the front end, too.
func New(config Config, world World) (*Front, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	settings := fsm.DefaultSettings()
	f := &Front{
		config: config, world: world, decoder: config.decoder(), mode: ingestEverywhere, role: follower{}, barrier: ingest.NewBarrier(),
		hasStore: make(chan struct{}), drain: make(chan struct{}), pending: pending.NewBuffer(config.HoldMessages, config.HoldBytes), shares: newClientShares(&config),
		limits: settings.Limits, expiry: time.Duration(settings.NotificationExpiry) * time.Millisecond,
	}
	if config.FollowLeader {
		f.mode = ingestAtLeader
	}
	f.room.L = &f.mu
	metrics, log := world.Metrics, world.Log
	f.disconnects = broker.NewFeed(world.Driver, func(ctx context.Context) { f.pause(ctx, config.BackoffMax) }, metrics.disconnects.WithLabelValues("dropped").Inc, log)
	f.kicker = broker.NewKicker(world.Driver, func(result string) { metrics.kicked.WithLabelValues(result).Inc() }, log)
	f.subscriber = broker.NewSubscriber(world.Driver, func(result string) { metrics.subscribed.WithLabelValues(result).Inc() }, log)
	f.login = &mqttconn.Login{
		Dialer: world.Dialer, Username: config.Username, Password: config.Password, KeepAlive: config.KeepAlive, Timeout: config.ConnectTime, Window: config.Window,
	}
	sessions := ingest.Config{
		Cluster: config.Cluster, Node: config.Node, SessionAge: config.SessionAge, ProbeInterval: config.ProbeInterval,
		BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	}
	outside := ingest.World{
		Login: f.login, Contact: world.Contact, Wall: world.Wall, Random: world.Random, Pause: f.pause, Log: log, Metrics: metrics.Ingest,
	}
	f.session = ingest.NewNodeSession(&sessions, &outside, receiver{f}, f.barrier, f.mode.followersHold())
	if f.mode == ingestAtLeader {
		f.newLeaderSession = func() *ingest.LeaderSession {
			return ingest.NewLeaderSession(&sessions, &outside, receiver{f}, f.barrier, f.store.Wall, f.store.Confirm)
		}
	}
	f.outbox = publish.NewOutbox(publish.Config{
		Cluster: config.Cluster, Connections: config.Publishers, Notifications: config.QueueNotifications, Bytes: config.QueueBytes,
		BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	}, publish.World{
		Connect: f.login.Publisher, Confirm: func(ctx context.Context) error { return f.store.Confirm(ctx) }, Pause: f.pause,
		SessionUpSince: f.session.UpSince, TrustedIdentity: world.Driver.TrustedIdentity, Log: log, Metrics: metrics.Publish,
	})
	return f, nil
}

// SetStore gives the front end its store. It is called once, before Run; Serve waits for it.
func (f *Front) SetStore(store Store) {
	f.store = store
	close(f.hasStore)
}

// Run receives requests until the context ends.
func (f *Front) Run(ctx context.Context) {
	var workers sync.WaitGroup
	workers.Go(func() { f.expireHeld(ctx) })
	workers.Go(func() { f.disconnects.Run(ctx) })
	workers.Go(func() { f.kicker.Run(ctx) })
	workers.Go(func() { f.subscriber.Run(ctx) })
	workers.Go(func() { f.session.Run(ctx) })
	<-ctx.Done()
	f.mu.Lock()
	f.stopped = true
	f.room.Broadcast()
	f.mu.Unlock()
	workers.Wait()
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

// dropStale removes a request if it is stale, and reports whether it did. It needs Front.mu.
func (f *Front) dropStale(r *pending.Request) bool {
	if !f.isStale(r) {
		return false
	}
	f.world.Metrics.heldDropped.WithLabelValues("stale").Inc()
	f.end(r)
	return true
}

// isStale reports whether a request came when what came was old. f.mu is held.
func (f *Front) isStale(r *pending.Request) bool {
	return r.Arrived.After(f.staleFrom) && !r.Arrived.After(f.staleTo)
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
	f.pending.Hints.Forget(now)
	for r := range f.pending.All() {
		if r.State.IsHeld() && now.After(r.HoldUntil) {
			if r.Outcome == 0 {
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
