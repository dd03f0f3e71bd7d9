package mqttfront

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/exclusive"
	"holdfast/mqttfront/leader"
	"holdfast/mqttfront/metrics"
	"holdfast/mqttfront/mirror"
	"holdfast/mqttfront/outbox"
	"holdfast/mqttfront/session"
)

// Environment is all that a Front touches outside of its own memory.
type Environment struct {
	Dialer  *mqttconn.Dialer
	Driver  broker.Driver
	Wall    func() int64 // milliseconds since the Unix epoch
	Random  func() uint64
	Log     *slog.Logger
	Metrics *metrics.Metrics
}

// Front is the MQTT side of one node. Run keeps the node connected to the broker. Serve receives
// requests and answers them while the node leads. The store calls Serve and the methods in
// observer.go. All methods are safe for concurrent use.
type Front struct {
	config *Config
	log    *slog.Logger

	store    leader.Store
	hasStore chan struct{} // closed when there is a store
	// stops the receiver from admitting requests; further calls do nothing
	stopAdmitting func()

	dispatcher  *leader.Dispatcher
	receiver    *leader.Receiver
	clients     *leader.Clients
	session     *session.Own
	leading     leading
	disconnects *broker.Feed
	outbox      *outbox.Outbox
	mirror      *mirror.Mirror
	exclusive   *exclusive.Checker
}

// leading is what a front end has for its leaderships.
type leading struct {
	// newSession returns the cluster's session for a leadership.
	newSession func() *session.Cluster
	session    atomic.Pointer[session.Cluster] // of this leadership; nil while there is none
	serving    atomic.Bool                     // Serve has begun to serve
}

// New returns a front end without a store. SetStore gives it the store later, because the store
// needs a front end when it is created.
func New(config Config, env Environment) (*Front, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.MaxAge, config.MaxUnexpiredAge = config.SessionExpiry, config.MaxExpiry+
		config.DedupMargin
	metrics, log := env.Metrics, env.Log
	f := &Front{
		config: &config, log: log, hasStore: make(chan struct{}),
		dispatcher: leader.NewDispatcher(&config.Config, metrics, log),
	}
	f.disconnects = broker.NewFeed(env.Driver,
		func(ctx context.Context) {
			backoff.Pause(ctx,
				backoff.Jitter(config.BackoffMax, env.Random))
		},
		metrics.Disconnects.WithLabelValues("dropped").Inc, log)
	f.clients = f.dispatcher.NewClients(env.Driver)
	drain := make(chan struct{})
	f.stopAdmitting = sync.OnceFunc(func() { close(drain) })
	decoder := config.decoder()
	decoder.Store = config.Cluster + "/" + config.Node
	decoder.Reserved = func(topic string) bool { return f.mirror.Owns(topic) }
	f.receiver = leader.NewReceiver(f.dispatcher, env.Driver, decoder, drain, f.clients.Kick,
		func(m mqttconn.Message) bool { return f.exclusive.IsQuestion(m.Publish) })
	f.newConnections(env)
	return f, nil
}

// newConnections creates the node's own session, the constructor of the cluster's, the outbox and
// the mirrors. It opens no connection.
func (f *Front) newConnections(env Environment) {
	config := f.config
	newBackoff := func() *backoff.Backoff {
		return backoff.New(config.BackoffMin, config.BackoffMax,
			env.Random)
	}
	login := &mqttconn.Login{
		Dialer: env.Dialer, Username: config.Username, Password: config.Password,
		KeepAlive: config.KeepAlive, Timeout: config.ConnectTimeout, Window: config.Window,
	}
	sessionConfig := session.Config{
		Cluster: config.Cluster, Node: config.Node, SessionExpiry: config.SessionExpiry,
		ProbeInterval: config.ProbeInterval,
	}
	sessionEnv := session.Environment{
		Login: login, Random: env.Random, Backoff: newBackoff, Log: env.Log,
		Metrics: env.Metrics.Session,
	}
	f.leading.newSession = func() *session.Cluster {
		return session.NewCluster(&sessionConfig, &sessionEnv, f.receiver, f.store, f.store.Confirm)
	}
	f.exclusive = exclusive.New(exclusive.Config{
		Cluster: config.Cluster, Node: config.Node,
		ClientID: sessionConfig.OwnClientID(),
	}, exclusive.Environment{
		Leads: f.dispatcher.Leads, Wall: env.Wall, Random: env.Random,
		Observe: env.Metrics.SetOtherStore, Log: env.Log,
	})
	f.session = session.NewOwn(&sessionConfig, &sessionEnv, session.Replies{
		Topic: f.exclusive.ResponseTopic(), Receive: f.exclusive.Answered, Begun: f.exclusive.Ask,
	})
	f.outbox = outbox.New(outbox.Config{
		Cluster: config.Cluster, Connections: config.PublishingConnections,
		MaxNotifications: config.QueueNotifications, MaxNotificationBytes: config.QueueBytes,
	}, outbox.Environment{
		Connect:        login.Publisher,
		Confirm:        func(ctx context.Context) error { return f.store.Confirm(ctx) },
		Backoff:        newBackoff,
		SessionUpSince: f.session.UpSince, TrustedIdentity: env.Driver.TrustedIdentity,
		Log: env.Log, Metrics: env.Metrics.Publish,
	})
	f.mirror = mirror.New(mirror.Config{
		Cluster: config.Cluster, MaxPacket: session.MaxPacket,
	}, mirror.Environment{
		Login: login, Confirm: func(ctx context.Context) error { return f.store.Confirm(ctx) },
		View:    func(see func(*fsm.Machine)) { f.store.View(see) },
		Backoff: newBackoff, Log: env.Log, Metrics: env.Metrics.Mirror,
	})
}

// SetStore gives the front end its store. It is called once, before Run; Serve waits for it.
func (f *Front) SetStore(store leader.Store) {
	f.store = store
	f.dispatcher.SetStore(store)
	close(f.hasStore)
}

// Run keeps the node connected to the broker until the context ends.
func (f *Front) Run(ctx context.Context) {
	var workers sync.WaitGroup
	for _, work := range []func(context.Context){
		f.disconnects.Run, f.clients.Run, f.session.Run,
		f.mirror.FollowSettings, f.askForOthers,
	} {
		workers.Go(func() { work(ctx) })
	}
	workers.Wait()
}

// askForOthers asks whether another store is at the broker, until the context ends.
func (f *Front) askForOthers(ctx context.Context) { f.exclusive.Run(ctx, f.session.Publish) }

// DisconnectFeedErr returns the last error of the feed of client disconnects if it is at most 2 *
// (BackoffMax + ConnectTimeout) old, and nil otherwise. Without a driver it is always nil. While
// the feed fails, the watches of clients that disconnect do not end.
func (f *Front) DisconnectFeedErr() error {
	return f.disconnects.Err(2 * (f.config.BackoffMax + f.config.ConnectTimeout))
}

// Mirror returns the publisher of the mirrors: keys whose values the leader publishes as retained
// messages.
func (f *Front) Mirror() *mirror.Mirror { return f.mirror }

// Accepting reports whether this node leads and executes requests.
func (f *Front) Accepting() bool { return f.dispatcher.Leads() }

// Drain stops admitting requests, and waits until the executing ones are answered or the context
// ends. Later messages are not acknowledged, so the broker delivers them again.
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

// The methods below implement cluster.Observer: what the store reports to the front end.

// Applied implements the store's observer.
func (f *Front) Applied(outcome *fsm.EntryOutcome, tags []any) {
	f.dispatcher.Applied(outcome, tags)
	f.mirror.Applied(outcome)
}

// Restored implements the store's observer.
func (f *Front) Restored(fsm.Status) { f.mirror.Restored() }

// ReadDone implements the store's observer.
func (f *Front) ReadDone(tag any, _ uint64, result fsm.Result) {
	f.dispatcher.ReadDone(tag, result)
}

// Failed implements the store's observer.
func (f *Front) Failed(tag any, invalid bool) { f.dispatcher.Failed(tag, invalid) }
