package mqttfront

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/exclusive"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/mirror"
	"holdfast/mqttfront/publish"
	"holdfast/mqttfront/role"
)

// Environment is all that a Front touches outside of its own memory.
type Environment struct {
	Dialer  *mqttconn.Dialer
	Driver  broker.Driver
	Contact ingest.ContactStore // keeps, across restarts, up to when the session has delivered what the broker received
	Wall    func() int64        // milliseconds since the Unix epoch
	Random  func() uint64
	Log     *slog.Logger
	Metrics *metrics.Metrics
}

// Front is the MQTT side of one node. Run receives requests on every node. Serve answers them while the node leads. The store calls Serve and the methods in
// observer.go. All methods are safe for concurrent use.
type Front struct {
	config *Config
	log    *slog.Logger

	store         role.Store
	hasStore      chan struct{} // closed when there is a store
	stopAdmitting func()        // stops the receiver from admitting requests; further calls do nothing

	dispatcher  *role.Dispatcher
	receiver    *role.Receiver
	clients     *role.Clients
	barrier     *ingest.Barrier
	session     *ingest.NodeSession
	leading     leading
	disconnects *broker.Feed
	outbox      *publish.Outbox
	mirror      *mirror.Mirror
	exclusive   *exclusive.Checker
}

// leading is what a front end has for its leaderships.
type leading struct {
	// newSession creates the session by which the leader receives requests. It is nil if the setting cluster.ingest is "everywhere": then each node's
	// own session receives them.
	newSession func() *ingest.LeaderSession
	session    atomic.Pointer[ingest.LeaderSession] // the session that newSession created for this leadership; nil if there is none
	serving    atomic.Bool                          // Serve has begun to serve
}

// New returns a front end without a store. SetStore gives it the store later, because the store needs a front end when it is created.
func New(config Config, env Environment) (*Front, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	metrics, log, pause := env.Metrics, env.Log, newPause(env.Random)
	f := &Front{
		config: &config, log: log, hasStore: make(chan struct{}),
		dispatcher: role.NewDispatcher(&config.Config, metrics, log), barrier: ingest.NewBarrier(),
	}
	f.disconnects = broker.NewFeed(env.Driver, func(ctx context.Context) { pause(ctx, config.BackoffMax) }, metrics.Disconnects.WithLabelValues("dropped").Inc, log)
	f.clients = f.dispatcher.NewClients(env.Driver)
	drain := make(chan struct{})
	f.stopAdmitting = sync.OnceFunc(func() { close(drain) })
	decoder := config.decoder()
	decoder.Store = config.Cluster + "/" + config.Node
	decoder.Reserved = func(topic string) bool { return f.mirror.Owns(topic) }
	f.receiver = role.NewReceiver(f.dispatcher, env.Driver, decoder, drain, f.clients.Kick, func(m mqttconn.Message) bool { return f.exclusive.IsQuestion(m.Publish) })
	f.newConnections(env)
	return f, nil
}

// newConnections creates the node's own session, the constructor of the leader's sessions, the outbox and the mirrors. It opens no connection.
func (f *Front) newConnections(env Environment) {
	config, pause := f.config, newPause(env.Random)
	login := &mqttconn.Login{
		Dialer: env.Dialer, Username: config.Username, Password: config.Password, KeepAlive: config.KeepAlive, Timeout: config.ConnectTimeout, Window: config.Window,
	}
	sessionConfig := ingest.Config{
		Cluster: config.Cluster, Node: config.Node, SessionExpiry: config.SessionExpiry, ProbeInterval: config.ProbeInterval,
		BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	}
	sessionEnv := ingest.Environment{
		Login: login, Contact: env.Contact, Wall: env.Wall, Random: env.Random, Pause: pause,
		Log: env.Log, Metrics: env.Metrics.Ingest,
	}
	awaiting := &sessionAwaiter{barrier: f.barrier, blocked: f.dispatcher.Blocked, countWithoutSession: env.Metrics.WithoutSession.Inc, log: env.Log}
	awaitSession := awaiting.await
	if config.IngestAtLeader {
		f.leading.newSession = func() *ingest.LeaderSession {
			return ingest.NewLeaderSession(&sessionConfig, &sessionEnv, f.receiver, f.barrier, f.store.ClusterClock, f.store.Confirm)
		}
		awaitSession = func(context.Context, time.Time) {} // nothing to wait for: the broker keeps the requests for the leader's session
	}
	f.exclusive = exclusive.New(exclusive.Config{Cluster: config.Cluster, Node: config.Node, ClientID: sessionConfig.NodeClientID()}, exclusive.Environment{
		Leads: f.dispatcher.Leads, Wall: env.Wall, Random: env.Random, Observe: env.Metrics.SetOtherStore, Log: env.Log,
	})
	f.session = ingest.NewNodeSession(&sessionConfig, &sessionEnv, f.receiver, f.barrier, !config.IngestAtLeader,
		ingest.Replies{Topic: f.exclusive.ResponseTopic(), Receive: f.exclusive.Answered, Begun: f.exclusive.Ask})
	f.outbox = publish.NewOutbox(publish.Config{
		Cluster: config.Cluster, Connections: config.PublishingConnections, MaxNotifications: config.QueueNotifications, MaxNotificationBytes: config.QueueBytes,
		BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	}, publish.Environment{
		Connect: login.Publisher, Confirm: func(ctx context.Context) error { return f.store.Confirm(ctx) }, Pause: pause,
		SessionUpSince: f.session.UpSince, AwaitSession: awaitSession, TrustedIdentity: env.Driver.TrustedIdentity, Log: env.Log, Metrics: env.Metrics.Publish,
	})
	f.mirror = mirror.New(mirror.Config{
		Cluster: config.Cluster, MaxPacket: ingest.MaxPacket, BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	}, mirror.Environment{
		Login: login, Confirm: func(ctx context.Context) error { return f.store.Confirm(ctx) }, View: func(see func(*fsm.Machine)) { f.store.View(see) },
		Pause: pause, Log: env.Log, Metrics: env.Metrics.Mirror,
	})
}

// SetStore gives the front end its store. It is called once, before Run; Serve waits for it.
func (f *Front) SetStore(store role.Store) {
	f.store = store
	f.dispatcher.SetStore(store)
	close(f.hasStore)
}

// Run receives requests until the context ends.
func (f *Front) Run(ctx context.Context) {
	var workers sync.WaitGroup
	for _, work := range []func(context.Context){f.dispatcher.Run, f.disconnects.Run, f.clients.Run, f.session.Run, f.mirror.FollowSettings, f.askForOthers} {
		workers.Go(func() { work(ctx) })
	}
	workers.Wait()
}

// askForOthers asks whether another store is at the broker, until the context ends.
func (f *Front) askForOthers(ctx context.Context) { f.exclusive.Run(ctx, f.session.Publish) }

// DisconnectFeedErr returns the last error of the feed of client disconnects if it is at most 2 * (BackoffMax + ConnectTimeout) old, and nil otherwise.
// Without a driver it is always nil. While the feed fails, the watches of clients that disconnect do not end.
func (f *Front) DisconnectFeedErr() error {
	return f.disconnects.Err(2 * (f.config.BackoffMax + f.config.ConnectTimeout))
}

// Mirror returns the publisher of the mirrors: keys whose values the leader publishes as retained messages.
func (f *Front) Mirror() *mirror.Mirror { return f.mirror }

// Accepting reports whether this node leads and already proposes new requests on arrival.
func (f *Front) Accepting() bool { return f.dispatcher.Accepting() }

// Drain stops admitting requests, and waits until the executing ones are answered or the context ends. Later messages are not
// acknowledged, so the broker delivers them again.
func (f *Front) Drain(ctx context.Context) {
	f.stopAdmitting()
	const poll = 5 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for f.dispatcher.Busy() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// newPause returns a function that waits for a random time between a half of d and d, or until the context ends.
func newPause(random func() uint64) func(ctx context.Context, d time.Duration) {
	return func(ctx context.Context, d time.Duration) {
		timer := time.NewTimer(d/2 + time.Duration(random()%uint64(d/2+1)))
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
}
