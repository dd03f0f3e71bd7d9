package mirror

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/fsm"
	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
)

// Config is what a Mirror needs to know. All fields are set.
type Config struct {
	Cluster string // prefix of the client id
	// Maximum Packet Size in bytes of the connection that receives the retained messages
	MaxPacket int
}

// clientID returns the client id of the connection that publishes mirrors. It is the same on every
// node.
func (c *Config) clientID() string { return c.Cluster + "-out-mirror" }

// comparingID returns the client id of the connection by which the leader compares the broker's
// retained messages with the state. It, too, is the same on every node.
func (c *Config) comparingID() string { return c.clientID() + "-check" }

// markerTopics returns the prefix of the topics of markers: messages that a comparison publishes to
// itself, to learn that it has received what the broker sends before them.
func (c *Config) markerTopics() string { return "holdfast/" + c.Cluster + "/mirror/" }

// Environment is all that a Mirror touches outside of its own memory. The functions are safe for
// concurrent use.
type Environment struct {
	Login *mqttconn.Login
	// Confirm returns nil when this node led at some moment after the call.
	Confirm func(ctx context.Context) error
	// View runs f with the state, never at the same time as Applied.
	View func(f func(*fsm.Machine))
	// Backoff returns the delay between attempts to connect.
	Backoff func() *backoff.Backoff
	Log     *slog.Logger
	Metrics *Metrics
}

// Mirror publishes the keys of all mirrors (fsm.Mirror, a setting) as retained messages while its
// node leads. All methods are safe for concurrent use.
type Mirror struct {
	config  Config
	env     Environment
	mirrors atomic.Pointer[[]fsm.Mirror] // the mirrors in force, as read last
	// capacity 1; an element says that mirrors may be out of date
	reread  chan struct{}
	reading sync.Mutex // held while mirrors is read from the state
	// capacity 1; an element says that the state or the mirrors were replaced
	restart chan struct{}

	backlog  *backlog
	progress *progress
}

// New returns a Mirror.
func New(config Config, env Environment) *Mirror {
	backlog := newBacklog()
	m := &Mirror{
		config: config, env: env, reread: make(chan struct{}, 1), restart: make(chan struct{}, 1),
		backlog: backlog, progress: &progress{backlog: backlog, metrics: env.Metrics, log: env.Log},
	}
	m.mirrors.Store(new([]fsm.Mirror))
	return m
}

// Owns reports whether only mirrors may publish on a topic.
func (m *Mirror) Owns(name string) bool {
	return slices.ContainsFunc(*m.mirrors.Load(),
		func(mirror fsm.Mirror) bool { return strings.HasPrefix(name, mirror.Topic) })
}

// FollowSettings keeps Owns up to date until the context ends. It runs on every node.
func (m *Mirror) FollowSettings(ctx context.Context) {
	for {
		m.read()
		select {
		case <-ctx.Done():
			return
		case <-m.reread:
		}
	}
}

// read reads which mirrors are in force, and returns what their topics begin with.
func (m *Mirror) read() (prefixes []string) {
	m.reading.Lock()
	defer m.reading.Unlock()
	var settings fsm.Settings
	m.env.View(func(machine *fsm.Machine) {
		settings, _ = machine.Settings()
		// while the state is locked, because Applied reads mirrors
		m.mirrors.Store(&settings.Mirrors)
	})
	for _, mirror := range settings.Mirrors {
		if !slices.Contains(prefixes, mirror.Topic) {
			prefixes = append(prefixes, mirror.Topic)
		}
	}
	return prefixes
}

// Applied queues the topics of the mirrored keys that an entry changed, and notes whether the entry
// replaced the mirrors or the state. It is called for each entry in the order of the log, with the
// state locked.
func (m *Mirror) Applied(outcome *fsm.EntryOutcome) {
	for i := range outcome.Commands {
		command := &outcome.Commands[i]
		changed := command.Kind == fsm.KindConfigure &&
			!slices.Equal(command.Settings.Mirrors, *m.mirrors.Load())
		if !outcome.Skipped && (changed || command.Kind == fsm.KindRestore) {
			m.replaced()
		}
	}
	if len(outcome.Mirrored) == 0 {
		return
	}
	for _, changed := range outcome.Mirrored {
		t := topic{changed.Topic, changed.Key}
		if t.isValid() {
			m.backlog.change(t)
		} else {
			m.progress.countInvalidTopic(t)
		}
	}
}

// Restored is called after a snapshot has replaced the state, with the state locked.
func (m *Mirror) Restored() { m.replaced() }

// replaced notes that the state or the settings were replaced.
func (m *Mirror) replaced() {
	signal(m.reread)
	signal(m.restart)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run publishes the mirrors until the context ends. It runs while the node leads.
func (m *Mirror) Run(ctx context.Context) {
	m.progress.beginLeading()
	defer m.progress.endLeading()
	var reporting sync.WaitGroup
	reporting.Go(func() { m.report(ctx) })
	defer reporting.Wait()
	for delay := m.env.Backoff(); ctx.Err() == nil; {
		select {
		case <-m.restart: // read returns what it announced
		default:
		}
		prefixes := m.read()
		if len(prefixes) == 0 {
			m.idle(ctx)
			continue
		}
		lived, err := m.serve(ctx, prefixes)
		if err == nil || ctx.Err() != nil {
			continue
		}
		m.env.Log.Warn("the connection for mirrors is down, will retry", "client",
			m.config.clientID(), "error", err)
		m.progress.setFault(err)
		if lived > stableUptime {
			delay.Reset()
		}
		delay.Wait(ctx)
	}
}

// stableUptime is the uptime of a connection above which its loss resets the delay before the next
// attempt.
const stableUptime = 5 * time.Second

// idle waits until there may be mirrors, or the context ends.
func (m *Mirror) idle(ctx context.Context) {
	m.progress.beginIdle()
	select {
	case <-ctx.Done():
	case <-m.restart:
		signal(m.restart) // put back: Run receives it before it reads the mirrors
		m.progress.endIdle()
	}
}

// connect connects with the client id that all nodes share. It confirms the leadership before and
// after. If a deposed leader connects late, the broker ends the new leader's connection. The second
// confirmation keeps the deposed leader from publishing.
func (m *Mirror) connect(ctx context.Context) (*mqttconn.Publisher, error) {
	if err := m.env.Confirm(ctx); err != nil {
		return nil, err
	}
	publisher, err := m.env.Login.Publisher(ctx, m.config.clientID())
	if err != nil {
		return nil, err
	}
	if err := m.env.Confirm(ctx); err != nil {
		publisher.Abort()
		return nil, err
	}
	return publisher, nil
}

// serve connects, and serves that connection. It returns how long the connection lasted, and why it
// ended. The error is nil if the context has ended, or if a new connection is to begin because the
// mirrors or the state were replaced.
func (m *Mirror) serve(ctx context.Context, prefixes []string) (lived time.Duration, err error) {
	publisher, err := m.connect(ctx)
	if err != nil {
		return 0, err
	}
	desired := newDesired(m.env.View, publisher.MaxPacket())
	conn := &connection{
		publisher: publisher, keepAlive: m.env.Login.KeepAlive, backlog: m.backlog,
		desired:   desired,
		published: m.env.Metrics.countPublished, onRefused: m.progress.warnRefused,
	}
	c := &comparer{
		config: m.config, env: m.env, prefixes: prefixes, backlog: m.backlog,
		desired: desired, progress: m.progress,
	}
	began := time.Now()
	m.progress.connected(prefixes)
	connCtx, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		suspect bool // what was in flight may have ended the connection
		err     error
	}
	ended := make(chan result, 1)
	go func() {
		suspect, err := conn.run(connCtx, c.run)
		ended <- result{suspect, err}
	}()
	var r result
	select {
	case r = <-ended:
	case <-m.restart:
		signal(m.restart) // put back: Run receives it before it reads the mirrors
		stop()
		<-ended
	case <-ctx.Done():
		<-ended
	}
	m.progress.disconnected(r.suspect)
	return time.Since(began), r.err
}

// Resync requests a new comparison of the broker's retained messages with the state, and makes
// refused topics due for a retry at once. It does nothing and returns false if this node does not
// lead.
func (m *Mirror) Resync() bool { return m.progress.resync() }

// Status returns what the Mirror is doing.
func (m *Mirror) Status() Status { return m.progress.status(len(*m.mirrors.Load()) > 0) }

// reportInterval is how often the gauges are set.
const reportInterval = time.Second

// report keeps the gauges up to date until the context ends.
func (m *Mirror) report(ctx context.Context) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		status := m.Status()
		m.env.Metrics.set(status)
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	m.env.Metrics.set(Status{})
}
