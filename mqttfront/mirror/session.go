package mirror

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
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
	// quiet is how long the broker must have sent nothing before it counts as having sent all retained messages.
	quiet = time.Second
	// markerWait is how long the comparison waits for a message that the node sends itself, and that follows the retained ones with most brokers.
	// Another one is retained: it shows whether the broker sends such messages at all.
	markerWait = 5 * time.Second
	// refusedInterval is how often topics are tried again that the broker refused.
	refusedInterval = 30 * time.Second
	// silence is how long nothing may come from the broker while it owes an answer. That may come behind all retained messages, however long these take.
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
	lastHeard    atomic.Int64 // when a message or an answer came last, likewise
	asked        atomic.Int64 // when a packet was sent that is not answered yet, likewise; 0 if there is none. Topics of the backlog do not count
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

// errSilent says that the broker owes an answer, and nothing comes from it.
var errSilent = errors.New("the broker answers nothing")

// watch ends the connection when the broker is silent while it owes an answer, until the context ends.
func (s *session) watch(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		since := time.Since(s.began)
		asked := time.Duration(s.asked.Load())
		owes := s.backlog.inFlightFor() > silence || asked != 0 && since-asked > silence
		if owes && since-time.Duration(s.lastHeard.Load()) > silence {
			s.end(errSilent)
			return
		}
	}
}

// heard notes that something came from the broker.
func (s *session) heard() { s.lastHeard.Store(int64(time.Since(s.began))) }

// ask sends a packet and waits for the answer. While the broker is silent, watch ends the connection, and with it the wait.
func (s *session) ask(send func() error) error {
	s.asked.Store(int64(time.Since(s.began)) + 1)
	err := send()
	s.asked.Store(0)
	s.heard()
	return err
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
