package mqttfront

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/publish"
)

// World is all that a Front touches outside of its own memory.
type World struct {
	Dialer  *mqttconn.Dialer
	Driver  broker.Driver
	Contact ingest.ContactStore
	Wall    func() int64 // milliseconds since the Unix epoch
	Random  func() uint64
	Log     *slog.Logger
	Metrics *metrics.Metrics
}

// Front is the MQTT side of one node. Run receives, Serve answers while the node leads; Applied, ReadDone and Failed are
// called by the store. All methods are safe for concurrent use.
type Front struct {
	*requests
	random func() uint64

	hasStore chan struct{} // closed when store is set
	drain    chan struct{} // closed when nothing more is taken up
	once     sync.Once

	barrier  *ingest.Barrier
	receiver *receiver
	session  *ingest.NodeSession
	// newLeaderSession is nil where each node's own session brings requests.
	newLeaderSession func() *ingest.LeaderSession
	disconnects      *broker.Feed
	clients          *clients
	outbox           *publish.Outbox
}

// New returns a front end for a store, which may be given later by SetStore: the store needs the front end, too.
func New(config Config, world World) (*Front, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	metrics, log := world.Metrics, world.Log
	f := &Front{
		requests: newRequests(&config, metrics, log), random: world.Random,
		hasStore: make(chan struct{}), drain: make(chan struct{}), barrier: ingest.NewBarrier(),
	}
	f.role = follower{f.requests}
	f.disconnects = broker.NewFeed(world.Driver, func(ctx context.Context) { f.pause(ctx, config.BackoffMax) }, metrics.Disconnects.WithLabelValues("dropped").Inc, log)
	f.clients = &clients{
		requests:   f.requests,
		kicker:     broker.NewKicker(world.Driver, func(result string) { metrics.Kicked.WithLabelValues(result).Inc() }, log),
		subscriber: broker.NewSubscriber(world.Driver, func(result string) { metrics.Subscribed.WithLabelValues(result).Inc() }, log),
	}
	f.receiver = &receiver{requests: f.requests, driver: world.Driver, decoder: config.decoder(), drain: f.drain, kick: f.clients.kick}
	login := &mqttconn.Login{
		Dialer: world.Dialer, Username: config.Username, Password: config.Password, KeepAlive: config.KeepAlive, Timeout: config.ConnectTime, Window: config.Window,
	}
	f.connect(login, world)
	return f, nil
}

// connect makes what the front end is connected to the broker by.
func (f *Front) connect(login *mqttconn.Login, world World) {
	config := f.config
	sessions := ingest.Config{
		Cluster: config.Cluster, Node: config.Node, SessionAge: config.SessionAge, ProbeInterval: config.ProbeInterval,
		BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	}
	outside := ingest.World{
		Login: login, Contact: world.Contact, Wall: world.Wall, Random: world.Random, Pause: f.pause, Log: world.Log, Metrics: world.Metrics.Ingest,
	}
	f.session = ingest.NewNodeSession(&sessions, &outside, f.receiver, f.barrier, f.mode.followersHold())
	if f.mode == ingestAtLeader {
		f.newLeaderSession = func() *ingest.LeaderSession {
			return ingest.NewLeaderSession(&sessions, &outside, f.receiver, f.barrier, f.store.Wall, f.store.Confirm)
		}
	}
	f.outbox = publish.NewOutbox(publish.Config{
		Cluster: config.Cluster, Connections: config.Publishers, Notifications: config.QueueNotifications, Bytes: config.QueueBytes,
		BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	}, publish.World{
		Connect: login.Publisher, Confirm: func(ctx context.Context) error { return f.store.Confirm(ctx) }, Pause: f.pause,
		SessionUpSince: f.session.UpSince, AwaitSession: f.awaitSession, TrustedIdentity: world.Driver.TrustedIdentity, Log: world.Log, Metrics: world.Metrics.Publish,
	})
}

const (
	// sessionWait bounds how long publishing waits for the node's own session. It is well below the time after which a leader without its broker
	// hands over, because publishing is down meanwhile.
	sessionWait = time.Second
	// sessionWaitStep is how often it is looked whether waiting is of use.
	sessionWaitStep = 50 * time.Millisecond
)

// awaitSession implements publish.World. Where the broker alone keeps requests, no other node drops any, and nothing is waited for. A node whose
// requests wait for room does not read its probe either: room comes from publishing alone.
func (f *Front) awaitSession(ctx context.Context, moment time.Time) {
	if !f.mode.followersHold() {
		return
	}
	waiting, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	for !f.barrier.Passed(moment) && waiting.Err() == nil {
		if f.pushesBack.Load() {
			break
		}
		step, cancel := context.WithTimeout(waiting, sessionWaitStep)
		f.barrier.Await(step, moment)
		cancel()
	}
	if !f.barrier.Passed(moment) && ctx.Err() == nil {
		f.metrics.WithoutSession.Inc()
		f.log.Warn("publishing without this node's own session: a client that sends a request again now may get no reply")
	}
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
	workers.Go(func() { f.clients.kicker.Run(ctx) })
	workers.Go(func() { f.clients.subscriber.Run(ctx) })
	workers.Go(func() { f.session.Run(ctx) })
	<-ctx.Done()
	f.mu.Lock()
	f.stopped = true
	f.room.Broadcast()
	f.mu.Unlock()
	workers.Wait()
}

// DisconnectFeedErr returns why watches of clients that disconnect do not end now. It returns nil if they do, or if the broker has no driver.
func (f *Front) DisconnectFeedErr() error {
	return f.disconnects.Err(2 * (f.config.BackoffMax + f.config.ConnectTime))
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

// pause waits, with jitter, or until the context ends.
func (f *Front) pause(ctx context.Context, d time.Duration) {
	jittered := d/2 + time.Duration(f.random()%uint64(d/2+1))
	timer := time.NewTimer(jittered)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
