package mirror

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
)

const (
	// window is how many topics are in flight at once.
	window = 64
	// scanPage is how many keys are looked at while the state is locked.
	scanPage = 1000
	// quiet is how long the broker must have sent nothing before it counts as having sent all retained messages. One that comes later is compared, too.
	quiet = time.Second
	// markerWait is how long the comparison waits for a message that the node sends itself, and that follows the retained ones with most brokers.
	// Another one is retained: it shows whether the broker sends such messages at all.
	markerWait = 5 * time.Second
	// refusedInterval is how often topics are tried again that the broker refused.
	refusedInterval = 30 * time.Second
	// publishTimeout bounds the wait for a PUBACK, which may come behind all retained messages.
	publishTimeout = time.Minute
	step           = 100 * time.Millisecond
)

// session is one connection to the broker. It ends when the connection does.
type session struct {
	config   *Config
	env      *Environment
	prefixes []string // of the topics of all mirrors
	backlog  *backlog
	skip     func(topic) bool // reports whether a topic is not published
	settled  func(topic)      // called when the connection has outlived the publishing of a topic
	again    chan struct{}    // capacity 1: the retained messages are to be compared with the state once more
	begin    func()           // called when a comparison begins
	compared func(comparison) // called when it has ended

	client    *paho.Client
	conn      *mqttconn.Conn
	maxPacket int
	reason    chan error // why the connection ended; only the first is kept

	stale        atomic.Int64 // retained messages of this comparison that were not as in the state
	lastRetained atomic.Int64 // when the last retained message came, in nanoseconds since began
	began        time.Time
	marked       atomic.Bool // the marker has come back
	wildcards    atomic.Bool // the broker sends retained messages to a subscription with a wildcard
	warned       atomic.Bool // that the broker refuses topics
}

// connect connects with the client id that all nodes share. Leadership is confirmed before and after: a deposed leader that was paused just before
// disconnects the leader, and must not publish.
func (s *session) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.env.Login.Timeout)
	defer cancel()
	if err := s.env.Confirm(ctx); err != nil {
		return err
	}
	network, err := s.env.Login.Dialer.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	s.conn = mqttconn.NewConn(network, mqttconn.Receiver{MaxPacket: s.config.MaxPacket, Publish: s.received})
	s.client = paho.NewClient(paho.ClientConfig{
		Conn: s.conn, Session: mqttconn.NewSession(), PingHandler: &mqttconn.Pinger{}, PacketTimeout: publishTimeout,
		OnClientError:      s.end,
		OnServerDisconnect: func(d *paho.Disconnect) { s.end(&mqttconn.Refusal{Reason: d.ReasonCode}) },
	})
	connack, err := s.client.Connect(ctx, s.packet())
	if err != nil {
		_ = s.conn.Close() // the earlier error is returned
		s.env.Login.Dialer.Next()
		if connack != nil {
			err = &mqttconn.Refusal{Reason: connack.ReasonCode}
		}
		return fmt.Errorf("connect as %s: %w", s.config.clientID(), err)
	}
	s.maxPacket = math.MaxInt
	if properties := connack.Properties; properties != nil {
		if properties.MaximumPacketSize != nil {
			s.maxPacket = int(*properties.MaximumPacketSize)
		}
		if !properties.RetainAvailable {
			s.close()
			return errNoRetained
		}
	}
	if err := s.env.Confirm(ctx); err != nil {
		s.close()
		return err
	}
	return nil
}

var errNoRetained = errors.New("the broker keeps no retained messages")

func (s *session) packet() *paho.Connect {
	login := s.env.Login
	password := login.PasswordNow()
	receive, packet := uint16(math.MaxUint16), uint32(s.config.MaxPacket)
	return &paho.Connect{
		ClientID: s.config.clientID(), CleanStart: true, KeepAlive: uint16(login.KeepAlive / time.Second),
		Username: login.Username, UsernameFlag: login.Username != "", Password: password, PasswordFlag: password != nil,
		Properties: &paho.ConnectProperties{ReceiveMaximum: &receive, MaximumPacketSize: &packet},
	}
}

func (s *session) end(err error) {
	select {
	case s.reason <- err:
	default:
	}
}

// close ends the connection.
func (s *session) close() {
	s.conn.Hurry()
	_ = s.client.Disconnect(&paho.Disconnect{}) // an error means that the connection is gone already
	<-s.client.Done()
	_ = s.conn.Close()
}

// serve compares the retained messages with the state, and publishes, until the connection or the context ends.
func (s *session) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer s.backlog.close()
	defer cancel()
	for range window {
		working.Go(func() { s.publishAll(ctx) })
	}
	working.Go(func() { s.compareAll(ctx) })
	working.Go(func() { s.retry(ctx) })
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.reason:
		return err
	case <-s.client.Done():
		select {
		case err := <-s.reason:
			return err
		case <-time.After(step): // paho calls OnClientError and OnServerDisconnect in new goroutines after Done is closed
			return errors.New("the connection ended")
		}
	}
}

// retry queues again what the broker refused, until the context ends.
func (s *session) retry(ctx context.Context) {
	ticker := time.NewTicker(refusedInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.backlog.retry()
		}
	}
}

// comparison is what came of a comparison of the retained messages with the state.
type comparison struct {
	keys    int  // with a mirror
	missing int  // retained messages
	stale   int  // retained messages that were not as in the state, or of no key
	blind   bool // the broker does not send what it retains
}

// compareAll compares the retained messages with the state at once, and each time that this is asked for, until the context ends.
func (s *session) compareAll(ctx context.Context) {
	for {
		if err := s.compare(ctx); err != nil && ctx.Err() == nil {
			s.end(err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.again:
		}
	}
}

// compare has the broker send the retained messages, and queues what they lack.
func (s *session) compare(ctx context.Context) error {
	s.begin()
	s.marked.Store(false)
	s.stale.Store(0)
	s.scan(func(t topic) { s.backlog.expect(t) })
	marker := &paho.Publish{Topic: s.config.markerTopics() + "marker", QoS: 1, Retain: true, Payload: []byte{'1'}}
	if _, err := s.client.Publish(ctx, marker); err != nil && ctx.Err() == nil {
		s.env.Log.Debug("the marker among retained messages was not published", "error", err)
	}
	// No Local would hide what earlier leaders published under the same client id. At a higher QoS, brokers bound how many messages may wait.
	var subscriptions []paho.SubscribeOptions
	var filters []string
	for _, prefix := range slices.Concat(s.prefixes, []string{s.config.markerTopics()}) {
		subscriptions, filters = append(subscriptions, paho.SubscribeOptions{Topic: prefix + "#"}), append(filters, prefix+"#")
	}
	if err := mqttconn.Subscribe(ctx, s.client, subscriptions...); err != nil {
		return err
	}
	marker.Retain = false
	if _, err := s.client.Publish(ctx, marker); err != nil && ctx.Err() == nil {
		s.env.Log.Debug("the marker behind retained messages was not published", "error", err)
	}
	subscribed := time.Now()
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for !s.allRetainedCame(subscribed) {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
	if _, err := s.client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: filters}); err != nil { // what the node publishes itself would come back
		return fmt.Errorf("unsubscribe: %w", err)
	}
	var found comparison
	found.keys = s.scan(func(t topic) {
		if s.backlog.missing(t) {
			found.missing++
		}
	})
	found.stale, found.blind = int(s.stale.Load()), !s.wildcards.Load()
	if found.blind {
		s.env.Log.Warn("the broker sends no retained messages to a subscription with a wildcard: topics of keys that were deleted while no node led may stay")
	}
	s.env.Metrics.corrections.WithLabelValues(reasonMissing).Add(float64(found.missing))
	s.env.Log.Info("compared the retained messages of mirrors with the state", "keys", found.keys, "missing", found.missing, "stale", found.stale)
	s.compared(found)
	return nil
}

// allRetainedCame reports whether the broker has probably sent all retained messages.
func (s *session) allRetainedCame(subscribed time.Time) bool {
	last := s.began.Add(time.Duration(s.lastRetained.Load()))
	if last.Before(subscribed) {
		last = subscribed
	}
	return time.Since(last) >= quiet && (s.marked.Load() || time.Since(subscribed) >= markerWait)
}

// scan calls visit for the topic of each key with a mirror that makes a valid topic, in the order of the keys, and returns how many keys have a
// mirror. The state is locked while visit runs.
func (s *session) scan(visit func(topic)) (keys int) {
	for after, more := "", true; more; {
		s.env.View(func(m *fsm.Machine) {
			after, more = m.ScanMirrored(after, scanPage, func(key, prefix string) {
				keys++
				if t := (topic{prefix, key}); t.isValid() {
					visit(t)
				}
			})
		})
	}
	return keys
}

// received compares a message with the state. One that is not retained was just published, by this node as a rule.
func (s *session) received(message mqttconn.Message) {
	if strings.HasPrefix(message.Topic, s.config.markerTopics()) {
		if message.Retain {
			s.wildcards.Store(true)
		} else {
			s.marked.Store(true)
		}
		return
	}
	t, ok := topicOf(message.Topic, s.prefixes)
	if !ok {
		return
	}
	if message.Retain {
		s.lastRetained.Store(int64(time.Since(s.began)))
	}
	value, version, exists := s.shown(t)
	same := exists && value == string(message.Payload) && version == versionOf(message) || !exists && len(message.Payload) == 0
	switch {
	case same:
		s.backlog.same(t)
	case s.backlog.push(t) && message.Retain:
		s.stale.Add(1)
		s.env.Metrics.corrections.WithLabelValues(reasonStale).Inc()
	}
}

// versionProperty is the user property with the version of a key.
const versionProperty = "__ts"

func versionOf(message mqttconn.Message) string {
	if message.Properties == nil {
		return ""
	}
	return message.Properties.User.Get(versionProperty)
}

// shown returns what the retained message of a topic is to be.
func (s *session) shown(t topic) (value, version string, exists bool) {
	s.env.View(func(m *fsm.Machine) {
		if shown, ok := m.Mirrored(t.key); ok && shown.Topic == t.prefix && shown.Exists && t.isValid() {
			value, version, exists = shown.Value, shown.Version.String(), true
		}
	})
	return value, version, exists
}

// publishAll publishes one topic after the other until the backlog is closed.
func (s *session) publishAll(ctx context.Context) {
	for {
		next := s.backlog.next()
		if next == nil {
			return
		}
		result, err := s.publish(ctx, next.topic)
		if err != nil {
			s.end(err)
			return // it stays in flight: the next connection knows that it may have ended this one
		}
		s.env.Metrics.published.WithLabelValues(result).Inc()
		s.settled(next.topic)
		s.backlog.done(next, result != resultRefused)
	}
}

// publish makes the retained message of a topic like the state. The error says that the connection is not good any more.
func (s *session) publish(ctx context.Context, t topic) (result string, err error) {
	switch {
	case !t.isValid():
		return resultSkipped, nil
	case s.skip(t):
		return resultAbandoned, nil
	}
	value, version, exists := s.shown(t)
	message := &paho.Publish{Topic: t.String(), QoS: 1, Retain: true}
	result = resultCleared
	if exists {
		result = resultSet
		message.Payload = []byte(value)
		message.Properties = &paho.PublishProperties{User: paho.UserProperties{{Key: versionProperty, Value: version}}}
		if size, ok := mqttconn.PublishSize(message.Packet()); !ok || size > s.maxPacket {
			result, message.Payload, message.Properties = resultTooLarge, nil, nil
		}
	}
	response, err := s.client.Publish(ctx, message)
	switch {
	case response != nil && response.ReasonCode >= 0x80:
		if !s.warned.Swap(true) {
			s.env.Log.Warn("the broker refuses retained messages of mirrors: do its access rules let nodes publish there?", "topic", t.String(), "reason", fmt.Sprintf("0x%02X", response.ReasonCode))
		}
		return resultRefused, nil
	case err != nil:
		return "", fmt.Errorf("publish a retained message: %w", err)
	}
	return result, nil
}
