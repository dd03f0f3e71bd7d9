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
	// silence is how long nothing may come from the broker while it owes a PUBACK. A PUBACK may come behind all retained messages, however long these take.
	silence = 5 * time.Second
	// packetTimeout bounds the wait for the answer to one packet. It is far above silence, which ends the connection before.
	packetTimeout = 10 * time.Minute
	// maxPasses is how often at most the broker is asked for its retained messages in one comparison: a broker drops those for which it has no room.
	maxPasses = 20
	step      = 100 * time.Millisecond
)

// session is one connection to the broker. It ends when the connection does.
type session struct {
	config   *Config
	env      *Environment
	prefixes []string // of the topics of all mirrors
	backlog  *backlog
	// publishable returns an empty string, or the result of a topic that is not published now.
	publishable func(topic) (result string)
	wasRefused  func(topic) bool             // reports whether the broker has refused a topic, on this connection or an earlier one
	settled     func(t topic, result string) // called when the broker has answered to the publishing of a topic
	again       chan struct{}                // capacity 1: the retained messages are to be compared with the state once more
	begin       func()                       // called when a comparison begins
	compared    func(comparison)             // called when it has ended

	client    *paho.Client
	conn      *mqttconn.Conn
	maxPacket int
	healthy   chan struct{} // closed when the broker has acknowledged a message: before that, its end says nothing of topics
	reason    chan error    // why the connection ended; only the first is kept

	stale        atomic.Int64 // retained messages of this comparison that were not as in the state
	lastRetained atomic.Int64 // when the last retained message came, in nanoseconds since began
	began        time.Time
	lastHeard    atomic.Int64 // when a message or a PUBACK came last, likewise
	refuses      atomic.Bool  // the broker has refused a topic: it may end the connection because of that
	marked       atomic.Bool  // the marker that is published behind the subscription has come back
	first, last  atomic.Bool  // the retained markers before and behind the topics of mirrors have come
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
		Conn: s.conn, Session: mqttconn.NewSession(), PingHandler: &mqttconn.Pinger{}, PacketTimeout: packetTimeout,
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
	defer func() { _ = s.conn.Conn.Close() }() // a goroutine may be writing, and nothing that is buffered is worth the wait
	defer cancel()
	for range window {
		working.Go(func() { s.publishAll(ctx) })
	}
	working.Go(func() { s.compareAll(ctx) })
	working.Go(func() { s.retry(ctx) })
	working.Go(func() { s.watch(ctx) })
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

// errSilent says that the broker owes a PUBACK, and nothing comes from it.
var errSilent = errors.New("the broker acknowledges nothing")

// watch ends the connection when the broker is silent while it owes a PUBACK, until the context ends.
func (s *session) watch(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		heard := s.began.Add(time.Duration(s.lastHeard.Load()))
		if s.backlog.inFlightFor() > silence && time.Since(heard) > silence {
			s.end(errSilent)
			return
		}
	}
}

// heard notes that something came from the broker.
func (s *session) heard() { s.lastHeard.Store(int64(time.Since(s.began))) }

// comparison is what came of a comparison of the retained messages with the state.
type comparison struct {
	keys    int  // with a mirror
	missing int  // retained messages
	stale   int  // retained messages that were not as in the state, or of no key
	blind   bool // the broker does not send what it retains
	dropped bool // the broker dropped some of what it retains, at each pass
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

// compare has the broker send the retained messages, and queues what they lack. Where the broker drops some, it is asked again: what it has sent, and what is
// stale, does not come again.
func (s *session) compare(ctx context.Context) error {
	s.begin()
	var all comparison
	for range maxPasses {
		found, err := s.pass(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		all.keys, all.blind, all.dropped = found.keys, found.blind, found.dropped
		all.missing += found.missing
		all.stale += found.stale
		if !found.dropped {
			break
		}
		s.env.Log.Warn("the broker dropped retained messages: let it queue as many bytes for a client as it retains below the mirrors", "stale", found.stale)
	}
	s.env.Log.Info("compared the retained messages of mirrors with the state", "keys", all.keys, "missing", all.missing, "stale", all.stale)
	if all.blind {
		s.env.Log.Warn("the broker sends no retained messages to a subscription with a wildcard: topics of keys that were deleted while no node led may stay")
	}
	s.compared(all)
	return nil
}

// pass is one attempt of compare.
func (s *session) pass(ctx context.Context) (found comparison, err error) {
	s.marked.Store(false)
	s.first.Store(false)
	s.last.Store(false)
	s.stale.Store(0)
	s.scan(func(t topic) { s.backlog.expect(t) })
	markers := [...]string{s.config.markerTopics() + "first/", s.config.markerTopics() + "last/"}
	for _, marker := range markers {
		if _, err := s.client.Publish(ctx, &paho.Publish{Topic: marker + "marker", QoS: 1, Retain: true, Payload: []byte{'1'}}); err != nil && ctx.Err() == nil {
			s.env.Log.Debug("a marker among retained messages was not published", "error", err)
		}
	}
	s.setHealthy()
	// No Local would hide what earlier leaders published under the same client id. At a higher QoS, brokers bound how many messages may wait.
	var subscriptions []paho.SubscribeOptions
	var filters []string
	for _, prefix := range slices.Concat(markers[:1], s.prefixes, markers[1:]) {
		subscriptions, filters = append(subscriptions, paho.SubscribeOptions{Topic: prefix + "#"}), append(filters, prefix+"#")
	}
	if err := mqttconn.Subscribe(ctx, s.client, subscriptions...); err != nil {
		return found, err
	}
	if _, err := s.client.Publish(ctx, &paho.Publish{Topic: markers[1] + "marker", QoS: 1, Payload: []byte{'1'}}); err != nil && ctx.Err() == nil {
		s.env.Log.Debug("the marker behind retained messages was not published", "error", err)
	}
	if !s.awaitRetained(ctx) {
		return found, nil
	}
	if _, err := s.client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: filters}); err != nil { // what the node publishes itself would come back
		return found, fmt.Errorf("unsubscribe: %w", err)
	}
	found.keys = s.scan(func(t topic) {
		if s.wasRefused(t) {
			s.backlog.postpone(t)
		} else if s.backlog.missing(t) {
			found.missing++
		}
	})
	s.env.Metrics.corrections.WithLabelValues(reasonMissing).Add(float64(found.missing))
	found.stale, found.blind, found.dropped = int(s.stale.Load()), !s.first.Load(), s.first.Load() && !s.last.Load()
	return found, nil
}

// setHealthy notes that the broker has acknowledged something.
func (s *session) setHealthy() {
	select {
	case <-s.healthy:
	default:
		close(s.healthy)
	}
}

// awaitRetained waits until the broker has probably sent all retained messages, and returns false if the context ends before.
func (s *session) awaitRetained(ctx context.Context) bool {
	subscribed := time.Now()
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		last := s.began.Add(time.Duration(s.lastRetained.Load()))
		if last.Before(subscribed) {
			last = subscribed
		}
		if time.Since(last) >= quiet && (s.marked.Load() || time.Since(subscribed) >= markerWait) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// scan calls visit for the topic of each key that is shown, in the order of the keys, and returns how many keys have a mirror. The state is locked while
// visit runs.
func (s *session) scan(visit func(topic)) (keys int) {
	for after, more := "", true; more; {
		s.env.View(func(m *fsm.Machine) {
			after, more = m.ScanMirrored(after, scanPage, func(key string, shown fsm.Mirrored) {
				keys++
				if t := (topic{shown.Topic, key}); s.messageOf(t, &shown).result == resultSet {
					visit(t)
				}
			})
		})
	}
	return keys
}

// wanted is what the retained message of a topic is to be.
type wanted struct {
	result         string // resultSet; resultCleared or resultTooLarge if it is to be none
	value, version string
}

// messageOf returns what the retained message of a topic is to be. An empty one is none.
func (s *session) messageOf(t topic, shown *fsm.Mirrored) wanted {
	if !shown.Exists || shown.Value == "" || !t.isValid() {
		return wanted{result: resultCleared}
	}
	w := wanted{resultSet, shown.Value, shown.Version.String()}
	if size := overhead + len(t.prefix) + len(t.key) + len(w.value) + len(w.version); size > s.maxPacket {
		return wanted{result: resultTooLarge}
	}
	return w
}

// overhead is what a packet has at most beyond its topic, its payload and the version, in bytes.
const overhead = 5 + 2 + 2 + 4 + 1 + 2 + len(versionProperty) + 2

// lookup returns what the retained message of a topic is to be. ok is false if no mirror in force has such topics.
func (s *session) lookup(t topic) (w wanted, ok bool) {
	s.env.View(func(m *fsm.Machine) {
		settings, _ := m.Settings()
		ok = slices.ContainsFunc(settings.Mirrors, func(mirror fsm.Mirror) bool { return mirror.Topic == t.prefix })
		shown, mirrored := m.Mirrored(t.key)
		if !mirrored || shown.Topic != t.prefix {
			shown = fsm.Mirrored{}
		}
		w = s.messageOf(t, &shown)
	})
	return w, ok
}

// received compares a message with the state. One that is not retained was just published, by this node as a rule.
func (s *session) received(message mqttconn.Message) {
	s.heard()
	if marker, ok := strings.CutPrefix(message.Topic, s.config.markerTopics()); ok {
		switch {
		case !message.Retain:
			s.marked.Store(true)
		case strings.HasPrefix(marker, "first/"):
			s.first.Store(true)
		default:
			s.last.Store(true)
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
	w, ok := s.lookup(t)
	switch {
	case !ok:
	case w.value == string(message.Payload) && w.version == versionOf(message):
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

// publishAll publishes one topic after the other until the backlog is closed.
func (s *session) publishAll(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.healthy:
	}
	for {
		next := s.backlog.next()
		if next == nil {
			return
		}
		result := s.publishable(next.topic)
		if result == "" {
			var err error
			if result, err = s.publish(ctx, next.topic); err != nil {
				s.end(err)
				return // it stays in flight: the next connection knows that it may have ended this one
			}
			s.settled(next.topic, result)
		}
		s.env.Metrics.published.WithLabelValues(result).Inc()
		s.backlog.done(next, result != resultRefused && result != resultAbandoned)
	}
}

// publish makes the retained message of a topic like the state. The error says that the connection is not good any more.
func (s *session) publish(ctx context.Context, t topic) (result string, err error) {
	w, ok := s.lookup(t)
	if !ok { // its mirror has gone, and leaves what it has published
		return resultSkipped, nil
	}
	message := &paho.Publish{Topic: t.String(), QoS: 1, Retain: true, Payload: []byte(w.value)}
	if w.version != "" {
		message.Properties = &paho.PublishProperties{User: paho.UserProperties{{Key: versionProperty, Value: w.version}}}
	}
	response, err := s.client.Publish(ctx, message)
	if response != nil {
		s.heard()
	}
	switch {
	case response != nil && response.ReasonCode >= 0x80:
		s.refuses.Store(true)
		return resultRefused, nil
	case err != nil:
		return "", fmt.Errorf("publish a retained message: %w", err)
	}
	return w.result, nil
}
