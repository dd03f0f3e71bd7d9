package exclusive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/mqttconn"

	"holdfast/hlc"
	"holdfast/internal/topics"
	"holdfast/mqttfront/wire"
)

// ErrOtherStore says that another store answers requests at the same broker.
var ErrOtherStore = errors.New("another store answers requests at this broker")

const (
	// patience is how long a node waits for an answer before it serves. A later one counts, too.
	patience         = 300 * time.Millisecond
	leaderInterval   = 5 * time.Second
	followerInterval = 30 * time.Second
	// otherInterval is how often a node asks that has got an answer; random, up to twice as long.
	otherInterval = 2 * time.Second
	// standBack is how long no question must be answered until a node serves that had got an
	// answer. It is longer than the other store is without a leader at a failover: a cluster that
	// waits must not take its broker then.
	standBack = 20 * time.Second
	// deniedInterval is how often a node asks whose question the broker has denied: some end the
	// session then.
	deniedInterval = 5 * time.Minute
	// logInterval is the least time between two log lines about questions of other clusters: any
	// client can publish one.
	logInterval = time.Minute
	// validity is how long it counts that nobody answered, for a node that begins to serve.
	validity = 2 * followerInterval
	// maxUnasked bounds how long a node that cannot ask waits before it serves: a broker may deny
	// the question.
	maxUnasked = 2 * time.Second
	retry      = 50 * time.Millisecond
	// questionExpiry is longer than a queue is: a question that does not arrive was given to
	// another broker.
	questionExpiry = 2 * time.Minute
	// maxName bounds what is kept of a name in a question.
	maxName = 64
)

// Config names the node.
type Config struct {
	Cluster, Node string
	ClientID      string // MQTT client id of the session that asks
}

// Environment is all that a Checker touches outside of its own memory. The functions are safe for
// concurrent use.
type Environment struct {
	Leads  func() bool  // this node leads
	Wall   func() int64 // milliseconds since the Unix epoch
	Random func() uint64
	// Observe is called with whether another store answers, when that was found out.
	Observe func(other bool)
	Log     *slog.Logger
}

// Checker asks whether another store is at the broker. All methods are safe for concurrent use; Run
// is called once.
type Checker struct {
	config Config
	env    Environment
	key    string
	began  time.Time
	wake   chan struct{} // capacity 1: Run asks at once

	mu    sync.Mutex
	nonce string // correlation data of the latest question
	// the beginning of the latest nonce if the broker has acknowledged the question, else 0
	published uint64
	questions ring // of the cluster's nodes, that have arrived
	answered  bool // it was answered
	// when a question was last without an answer for patience; zero if never
	asked      time.Time
	other      bool          // a question was answered, standBack ago at most
	answeredAt time.Time     // when a question was answered last
	soon       bool          // the next question is due soon: this node has just begun to serve
	failure    error         // why the latest question could not be published; nil if it was
	heard      string        // who asked or answered last: another cluster and its node
	heardAt    time.Time     // zero for never
	loggedAt   time.Time     // when a question of another cluster was logged last
	changed    chan struct{} // closed and replaced when a field above changes
}

// New returns a checker that has not asked yet.
func New(config Config, env Environment) *Checker {
	return &Checker{
		config: config, env: env, began: time.Now(), wake: make(chan struct{}, 1),
		changed: make(chan struct{}),
		key:     config.Cluster + "/" + config.Node,
	}
}

// ResponseTopic returns the topic on which answers come.
func (c *Checker) ResponseTopic() string { return "clients/" + c.config.ClientID + "/other-store" }

// update changes the state, and wakes those who wait for a change.
func (c *Checker) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	c.env.Observe(c.other)
	close(c.changed)
	c.changed = make(chan struct{})
}

// Answered takes a message from the response topic.
func (c *Checker) Answered(message *mqttconn.Publish) {
	if message.Properties == nil {
		return
	}
	c.mu.Lock()
	isAnswer := c.nonce != "" && string(message.Properties.CorrelationData) == c.nonce
	wasOther := c.other
	c.mu.Unlock()
	if !isAnswer {
		return
	}
	c.update(func() {
		c.answered, c.other, c.answeredAt = true, true, time.Now()
		if from := storeOf(message); from != "" {
			c.heard, c.heardAt = quoted(from), time.Now()
		}
	})
	if !wasOther {
		c.env.Log.Error("another store answers requests at this broker: this cluster must not serve beside it", "who", c.who())
	}
}

// IsQuestion reports whether a request is a question of this cluster, which nobody is to answer. It
// notes who asks in another cluster.
func (c *Checker) IsQuestion(message *mqttconn.Publish) (own bool) {
	from := storeOf(message)
	if from == "" {
		return false
	}
	if cluster, _, _ := strings.Cut(from, "/"); cluster == c.config.Cluster {
		c.arrived(message.Properties.CorrelationData)
		return true
	}
	from = quoted(from)
	c.mu.Lock()
	toLog := time.Since(c.loggedAt) >= logInterval
	if c.heard, c.heardAt = from, time.Now(); toLog {
		c.loggedAt = c.heardAt
	}
	c.mu.Unlock()
	if toLog {
		c.env.Log.Warn("another cluster is at this broker, and asks whether it may serve", "who",
			from)
	}
	return false
}

// arrived notes that a question of this cluster has arrived here.
func (c *Checker) arrived(nonce []byte) {
	if len(nonce) < 8 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.questions.add(question{binary.BigEndian.Uint64(nonce), time.Now()})
}

// HeardSince reports whether a question of a node of this cluster has arrived after a moment: the
// one for which Published returned this number there.
func (c *Checker) HeardSince(number uint64, moment time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.questions.all[:], func(q question) bool {
		return q.number == number && q.at.After(moment)
	})
}

// question is a question that has arrived.
type question struct {
	number uint64
	at     time.Time
}

// ring has the last questions that have arrived. The zero value is empty.
type ring struct {
	all  [1024]question
	next int
}

func (r *ring) add(q question) {
	r.all[r.next] = q
	r.next = (r.next + 1) % len(r.all)
}

// Published returns a random number that stands for the latest question if the broker has
// acknowledged it, and otherwise 0.
func (c *Checker) Published() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.published
}

// Ask makes the node ask at once.
func (c *Checker) Ask() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// storeOf returns the cluster and the node that a question or an answer names, or an empty string.
func storeOf(message *mqttconn.Publish) (from string) {
	if message.Properties == nil {
		return ""
	}
	for _, p := range message.Properties.User {
		if p.Key == wire.StoreProperty {
			from = p.Value
		}
	}
	return from
}

// quoted makes a name fit for a log line.
func quoted(name string) string { return fmt.Sprintf("%.*q", maxName, name) }

// Run asks until the context ends. publish publishes a message by the session whose client id is
// Config.ClientID.
func (c *Checker) Run(ctx context.Context, publish func(context.Context, *mqttconn.Publish) error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		c.ask(ctx, publish)
		timer.Reset(c.interval())
	}
}

// interval returns how long to wait for the next question.
func (c *Checker) interval() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	soon := c.soon
	c.soon = false
	switch {
	case soon: // only a node that serves answers, so two that began at once know of each other now
		return patience + time.Duration(c.env.Random()%uint64(time.Second))
	case isDenied(c.failure) && time.Since(c.began) >= maxUnasked:
		return deniedInterval
	case c.other:
		return otherInterval + time.Duration(c.env.Random()%uint64(otherInterval))
	case c.failure != nil && time.Since(c.began) < maxUnasked:
		return retry
	case c.env.Leads():
		return leaderInterval
	default:
		return followerInterval
	}
}

// ask publishes a question, and waits for an answer.
func (c *Checker) ask(ctx context.Context, publish func(context.Context, *mqttconn.Publish) error) {
	nonce := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, c.env.Random()),
		c.env.Random())
	c.mu.Lock()
	c.nonce, c.answered = string(nonce), false
	c.mu.Unlock()
	expiry := uint32(questionExpiry / time.Second)
	asking, cancel := context.WithTimeout(ctx, maxUnasked)
	defer cancel()
	err := publish(asking, &mqttconn.Publish{
		Topic: topics.Invoke, QoS: 1, Payload: fmt.Appendf(nil, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n",
			len(c.key), c.key),
		Properties: &mqttconn.Properties{
			ResponseTopic: c.ResponseTopic(), CorrelationData: nonce, MessageExpiry: &expiry,
			User: mqttconn.UserProperties{
				{Key: "__ts", Value: hlc.Timestamp{
					Wall:   c.env.Wall(),
					NodeID: c.config.ClientID,
				}.String()},
				{Key: "__srcId", Value: c.config.ClientID},
				{Key: wire.StoreProperty, Value: c.key},
			},
		},
	})
	if err != nil {
		c.update(func() {
			c.failure, c.published = err, 0
			if isDenied(err) && time.Since(c.answeredAt) >= deniedInterval {
				c.other = false // nobody can find out any more
			}
		})
		return
	}
	c.update(func() { c.published = binary.BigEndian.Uint64(nonce) })
	timer := time.NewTimer(patience)
	defer timer.Stop()
	if c.await(ctx, timer.C, func() bool { return c.answered }) || ctx.Err() != nil {
		return
	}
	c.update(func() {
		c.failure = nil
		if c.answered || c.other && time.Since(c.answeredAt) < standBack {
			return
		}
		c.other, c.asked = false, time.Now()
	})
}

// await waits until holds returns true, and returns true then. It returns false when the limit or
// the context ends first. holds is called with mu held, now and after each change.
func (c *Checker) await(ctx context.Context, limit <-chan time.Time, holds func() bool) bool {
	for {
		c.mu.Lock()
		done, changed := holds(), c.changed
		c.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-limit:
			return false
		}
	}
}

// who returns who the other store is, as far as it is known.
func (c *Checker) who() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heardAt.IsZero() || time.Since(c.heardAt) > validity {
		return "it does not say its name: another implementation"
	}
	return "cluster and node " + c.heard
}

// Err returns an error that wraps ErrOtherStore if a question was answered, standBack ago at most.
func (c *Checker) Err() error {
	c.mu.Lock()
	other := c.other
	c.mu.Unlock()
	if !other {
		return nil
	}
	return fmt.Errorf("%w (%s): stop one of them, or give each its own broker", ErrOtherStore,
		c.who())
}

// Notes returns what an operator has to know while the node serves.
func (c *Checker) Notes() (notes []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.other: // that is Err
	case !c.heardAt.IsZero() && time.Since(c.heardAt) <= validity:
		notes = append(notes, "another cluster is at this broker, and does not serve because this one does: cluster and node "+c.heard)
	case c.failure != nil:
		notes = append(notes, fmt.Sprintf(
			"this node cannot find out whether another store is at this broker: let it publish on the request topic (%v)", c.failure))
	}
	return notes
}

// Serving says that the node has begun to serve: it asks soon, and more often than before.
func (c *Checker) Serving() {
	c.mu.Lock()
	c.soon = true
	c.mu.Unlock()
	c.Ask()
}

// isDenied reports whether the broker has denied a question, by an error that says so itself.
func isDenied(err error) bool {
	var denial interface{ Denied() bool }
	return errors.As(err, &denial) && denial.Denied()
}

// AwaitAlone waits until a question of the last minute was not answered. It does not wait long for
// a question that cannot be asked, as where the broker denies it.
func (c *Checker) AwaitAlone(ctx context.Context) {
	limit := time.NewTimer(maxUnasked)
	defer limit.Stop()
	c.Ask()
	known := c.await(ctx, limit.C, func() bool {
		cannotAsk := isDenied(c.failure) || c.failure != nil && time.Since(c.began) >= maxUnasked
		return !c.other && (cannotAsk || !c.asked.IsZero() && time.Since(c.asked) < validity)
	})
	if !known {
		// nobody could be asked in time; another store that has answered before counts all the same
		c.await(ctx, nil, func() bool { return !c.other })
	}
}

// AwaitOther waits until another store has answered. It returns Err, or nil if the context has
// ended.
func (c *Checker) AwaitOther(ctx context.Context) error {
	if c.await(ctx, nil, func() bool { return c.other }) {
		return c.Err()
	}
	return nil
}
