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
	"holdfast/internal/mqttconn"
)

// Config is what a Mirror needs to know. All fields are set.
type Config struct {
	Cluster    string        // prefix of the client id
	MaxPacket  int           // Maximum Packet Size in bytes of the connection that receives the retained messages
	BackoffMin time.Duration // shortest delay between attempts to connect
	BackoffMax time.Duration // longest delay between attempts to connect
}

// clientID returns the client id of the connection that publishes mirrors. It is the same on every node.
func (c *Config) clientID() string { return c.Cluster + "-out-mirror" }

// comparingID returns the client id of the connection that a comparison uses. It, too, is the same on every node.
func (c *Config) comparingID() string { return c.clientID() + "-check" }

// markerTopics returns the prefix of the topics of markers: messages that a comparison publishes and receives itself (pass.subscribe).
func (c *Config) markerTopics() string { return "holdfast/" + c.Cluster + "/mirror/" }

// Environment is all that a Mirror touches outside of its own memory. The functions are safe for concurrent use.
type Environment struct {
	Login *mqttconn.Login
	// Confirm returns nil when this node led at some moment after the call.
	Confirm func(ctx context.Context) error
	// View runs f with the state, never at the same time as Applied.
	View func(f func(*fsm.Machine))
	// Pause waits for a random time between d/2 and d, or until the context ends.
	Pause   func(ctx context.Context, d time.Duration)
	Log     *slog.Logger
	Metrics *Metrics
}

// Mirror publishes the mirrors while its node leads. All methods are safe for concurrent use.
type Mirror struct {
	config  Config
	env     Environment
	mirrors atomic.Pointer[[]fsm.Mirror] // the mirrors in force, as read last
	reread  chan struct{}                // capacity 1; an element says that mirrors may be out of date
	reading sync.Mutex                   // held while mirrors is read from the state
	restart chan struct{}                // capacity 1; an element says that the state or the mirrors were replaced

	backlog *backlog

	mu            sync.Mutex
	leading       bool
	session       *session   // nil while there is no connection
	comparing     bool       // there is no connection, or the comparison has not ended, or another one is wanted
	since         time.Time  // when comparing became true or the last comparison succeeded, whichever is later; zero without mirrors. See Status.Lag
	resyncs       uint64     // how many times Resync was called
	resyncsSeen   uint64     // resyncs when the last comparison began
	last          comparison // result of the last comparison that has succeeded
	corrected     comparison // messages found missing and stale since this node leads, or since the last Resync
	ended         time.Time  // when the last comparison succeeded
	fault         string     // why there is no connection, or why the last comparison failed; empty otherwise
	loggedRefused bool       // it was logged that the broker refuses topics
	loggedUnshown bool       // it was logged that keys make no valid topic
}

// New returns a Mirror.
func New(config Config, env Environment) *Mirror {
	m := &Mirror{config: config, env: env, reread: make(chan struct{}, 1), restart: make(chan struct{}, 1), backlog: newBacklog()}
	m.mirrors.Store(new([]fsm.Mirror))
	return m
}

// Owns reports whether only mirrors may publish on a topic.
func (m *Mirror) Owns(name string) bool {
	return slices.ContainsFunc(*m.mirrors.Load(), func(mirror fsm.Mirror) bool { return strings.HasPrefix(name, mirror.Topic) })
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
		m.mirrors.Store(&settings.Mirrors) // while the state is locked, because Applied reads mirrors
	})
	for _, mirror := range settings.Mirrors {
		if !slices.Contains(prefixes, mirror.Topic) {
			prefixes = append(prefixes, mirror.Topic)
		}
	}
	return prefixes
}

// Applied queues the topics of the mirrored keys that an entry changed, and notes whether the entry replaced the mirrors or the state. It is called for each
// entry in the order of the log, with the state locked.
func (m *Mirror) Applied(outcome *fsm.EntryOutcome) {
	for i := range outcome.Commands {
		command := &outcome.Commands[i]
		changed := command.Kind == fsm.KindConfigure && !slices.Equal(command.Settings.Mirrors, *m.mirrors.Load())
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
			m.countUnshown(t)
		}
	}
}

// countUnshown counts a key that is not published because its topic is invalid (topic.isValid). It logs the first one.
func (m *Mirror) countUnshown(t topic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leading {
		return
	}
	m.env.Metrics.published.WithLabelValues(resultSkipped).Inc()
	if !m.loggedUnshown {
		m.loggedUnshown = true
		m.env.Log.Warn("a key of a mirror makes no topic that brokers take: it is not shown", "topic", t.String())
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

// Resync requests a new comparison of the broker's retained messages with the state, and makes refused topics due for a retry at once. It does nothing and
// returns false if this node does not lead.
func (m *Mirror) Resync() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leading {
		return false
	}
	m.resyncs++
	m.corrected = comparison{}
	m.backlog.resetBackoff()
	if m.session != nil { // otherwise the next connection begins with a comparison
		m.markComparingLocked()
		signal(m.backlog.recompare)
	}
	return true
}

// Status is what a Mirror is doing.
type Status struct {
	Leading   bool // if false, the fields below are not set
	Connected bool // also true while no mirror is configured
	Comparing bool // the broker's retained messages are being compared with the state, or will be
	Keys      int  // number of keys with a mirror, at the last comparison
	Unshown   int  // number of these keys that are not published, because their topic is invalid
	Missing   int  // number of retained messages that the broker lacked, since this node leads or since the last Resync
	Stale     int  // number of retained messages, in the same time, that differed from the state or belonged to no key
	// Blind says that the broker does not send this node the retained messages of some mirror. If a key was deleted while no node led, or while the leader
	// had no connection for mirrors, its retained message may stay.
	Blind bool
	// Dropped says that the broker dropped some of its retained messages at the last comparison, because it has not enough room to queue them for a client:
	// it is not known whether these are as in the state.
	Dropped    bool
	Unretained int // number of topics whose messages the broker acknowledges but does not retain
	Topics     int // number of topics that are not known to be as in the state
	Refused    int // number of topics that the broker refuses, or on which it ends the connection
	// Lag is the age of the oldest change that the broker has not acknowledged. Refused topics that wait for a retry do not count. Without a connection, and
	// until a comparison has succeeded, it is at least the time since the connection was lost or the comparison became due. Failed attempts do not reset it.
	Lag time.Duration
	// InSync says that the broker has acknowledged all corrections of the last comparison, and all changes that are older than one second.
	InSync bool
	Fault  string // why there is no connection, or why the last comparison failed; empty otherwise
}

// maxInSyncLag bounds Status.Lag while the mirrors count as in sync: younger changes need no acknowledgement yet.
const maxInSyncLag = time.Second

// Status returns what the Mirror is doing.
func (m *Mirror) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leading {
		return Status{}
	}
	if len(*m.mirrors.Load()) == 0 {
		return Status{Leading: true, Connected: true, InSync: true}
	}
	s := Status{
		Leading: true, Connected: m.session != nil, Comparing: m.comparing, Keys: m.last.keys, Unshown: m.last.unshown, Missing: m.corrected.missing,
		Stale: m.corrected.stale, Blind: m.last.blind, Dropped: m.last.dropped, Unretained: m.last.unretained, Refused: m.backlog.refusedCount(), Fault: m.fault,
	}
	s.Topics, s.Lag = m.backlog.lag()
	if (!s.Connected || s.Comparing) && !m.since.IsZero() {
		s.Lag = max(s.Lag, time.Since(m.since))
	}
	s.InSync = s.Connected && !s.Comparing && !s.Dropped && s.Refused+s.Unretained == 0 && s.Lag < min(maxInSyncLag, time.Since(m.ended))
	return s
}

// Run publishes the mirrors until the context ends. It runs while the node leads.
func (m *Mirror) Run(ctx context.Context) {
	m.begin()
	defer m.resign()
	var reporting sync.WaitGroup
	reporting.Go(func() { m.report(ctx) })
	defer reporting.Wait()
	for delay := m.config.BackoffMin; ctx.Err() == nil; {
		select {
		case <-m.restart: // m.read returns the mirrors in force
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
		m.env.Log.Warn("the connection for mirrors is down, will retry", "client", m.config.clientID(), "error", err)
		m.setFault(err)
		if lived > stableUptime {
			delay = m.config.BackoffMin
		}
		m.env.Pause(ctx, delay)
		delay = min(2*delay, m.config.BackoffMax)
	}
}

// stableUptime is the uptime of a connection above which its loss resets the delay before the next attempt to BackoffMin.
const stableUptime = 5 * time.Second

// idle waits until there may be mirrors, or the context ends.
func (m *Mirror) idle(ctx context.Context) {
	m.mu.Lock()
	m.since, m.comparing, m.resyncsSeen, m.last, m.fault = time.Time{}, false, m.resyncs, comparison{}, ""
	m.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-m.restart:
		signal(m.restart) // Run takes it
		m.mu.Lock()
		m.markComparingLocked()
		m.mu.Unlock()
	}
}

// connect connects with the client id that all nodes share. It confirms the leadership before and after. A deposed leader that was paused just before its
// CONNECT disconnects the new leader; the second confirmation keeps it from publishing.
func (m *Mirror) connect(ctx context.Context) (*mqttconn.Publisher, error) {
	if err := m.env.Confirm(ctx); err != nil {
		return nil, err
	}
	publisher, err := m.env.Login.TryPublisher(ctx, m.config.clientID())
	if err != nil {
		return nil, err
	}
	if err := m.env.Confirm(ctx); err != nil {
		publisher.Abort()
		return nil, err
	}
	return publisher, nil
}

// serve connects, and serves that connection. It returns how long the connection lasted, and why it ended. The error is nil if the context has ended, or
// if a new session is to begin because the mirrors or the state were replaced.
func (m *Mirror) serve(ctx context.Context, prefixes []string) (lived time.Duration, err error) {
	publisher, err := m.connect(ctx)
	if err != nil {
		return 0, err
	}
	s := &session{
		config: &m.config, env: &m.env, prefixes: prefixes, backlog: m.backlog, publisher: publisher, maxPacket: publisher.MaxPacket(),
		recordBegin: m.comparisonBegun, recordCorrections: m.addCorrected, compared: m.recordComparison, comparisonFailed: m.setFault, onRefused: m.warnRefused, tooLarge: make(map[topic]string),
	}
	began := time.Now()
	m.attach(s)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		failed bool
		err    error
	}
	ended := make(chan result, 1)
	go func() {
		failed, err := s.serve(serving)
		ended <- result{failed, err}
	}()
	var r result
	select {
	case r = <-ended:
	case <-m.restart:
		signal(m.restart) // Run takes it
		stop()
		<-ended
	case <-ctx.Done():
		<-ended
	}
	m.detach(r.failed)
	return time.Since(began), r.err
}

// attach makes s the current session, and opens the backlog for it.
func (m *Mirror) attach(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session, m.fault = s, ""
	m.markComparingLocked()
	m.backlog.begin(s.prefixes)
}

// detach closes the backlog, and removes the current session. failed says that a topic in flight may have ended the connection.
func (m *Mirror) detach(failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.backlog.end(failed)
	m.session = nil
	m.markComparingLocked()
}

// markComparingLocked records that a comparison is due or under way. It does not start one.
func (m *Mirror) markComparingLocked() {
	if !m.comparing {
		m.comparing, m.since = true, time.Now()
	}
}

// warnRefused logs the first topic that the broker refuses.
func (m *Mirror) warnRefused(t topic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loggedRefused {
		m.loggedRefused = true
		m.env.Log.Warn("the broker refuses retained messages of mirrors: do its access rules let nodes publish there?", "topic", t.String())
	}
}

func (m *Mirror) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading, m.comparing, m.since, m.last, m.corrected, m.fault = true, true, time.Now(), comparison{}, comparison{}, ""
	m.loggedRefused, m.loggedUnshown = false, false
	m.backlog.reset()
}

func (m *Mirror) resign() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading = false
}

func (m *Mirror) comparisonBegun() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resyncsSeen = m.resyncs
	m.markComparingLocked()
}

func (m *Mirror) recordComparison(found comparison) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.ended, m.since, m.fault = found, time.Now(), time.Now(), ""
	m.comparing = m.resyncsSeen != m.resyncs
	if found.unshown > 0 && !m.loggedUnshown {
		m.loggedUnshown = true
		m.env.Log.Warn("some keys of mirrors make no topic that brokers take: they are not shown", "keys", found.unshown)
	}
}

// addCorrected counts what one pass of a comparison has corrected, also if the pass or the comparison failed after that.
func (m *Mirror) addCorrected(found comparison) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.corrected.missing += found.missing
	m.corrected.stale += found.stale
}

func (m *Mirror) setFault(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = err.Error()
}

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
