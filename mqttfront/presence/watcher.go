package presence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
)

// Config is what a Watcher needs to know.
type Config struct {
	Cluster string // prefix of the client id
	Node    string
	// Login is how it connects. Its Timeout also bounds a subscription and a publication; its
	// Window is not used.
	Login mqttconn.Login
	// Wall returns milliseconds since the Unix epoch. It is called once, so a clock that is set
	// later changes no time.
	Wall func() int64
	// Boot tells the markers of this process from those of an earlier one.
	Boot uint64
	Log  *slog.Logger
	// Trusted says that the broker adds the publisher's client id to each request.
	Trusted bool

	// how long the broker keeps the session and its events without a connection; in whole seconds
	SessionExpiry time.Duration
	Interval      time.Duration // between two markers (see the package comment)
}

// maxPacket is the size in bytes of the largest packet that is accepted.
const maxPacket = 1 << 20

// ErrNotConnected says that there is no session with the broker now.
var ErrNotConnected = errors.New("no session with the broker")

// Watcher has a session with the broker, which delivers the events of clients. It is safe for
// concurrent use.
type Watcher struct {
	config Config
	source Source
	start  time.Time
	wall   int64 // result of Config.Wall at start
	ledger *ledger
	// resumable says that the broker may have kept the session of this process.
	resumable bool

	mu   sync.Mutex
	conn *mqttconn.Conn // nil without a session
}

// New returns a Watcher that is not connected yet.
func New(config Config, source Source) *Watcher {
	return &Watcher{
		config: config, source: source, start: time.Now(), wall: config.Wall(),
		ledger: newLedger(),
	}
}

// now returns milliseconds since the Unix epoch, by a monotonic clock that was set from Wall in
// New.
func (w *Watcher) now() int64 { return w.wall + time.Since(w.start).Milliseconds() }

// Origin implements broker.Driver. It stamps a request with the time of the call plus Slack. The
// ledger stamps a disconnect with its time less Slack. So a disconnect never ends a watch whose
// KEYNOTIFY came after it.
func (w *Watcher) Origin(*mqttconn.Publish) broker.Origin {
	return broker.Origin{Time: w.now() + int64(Slack/time.Millisecond)}
}

// TrustedIdentity implements broker.Driver.
func (w *Watcher) TrustedIdentity() bool { return w.config.Trusted }

// topic returns the topic of this node's markers.
func (w *Watcher) topic() string {
	return fmt.Sprintf("holdfast/%s/%s/presence", w.config.Cluster, w.config.Node)
}

// WatchDisconnects implements broker.Driver. It is called once at a time.
func (w *Watcher) WatchDisconnects(ctx context.Context, report func(broker.Disconnect)) error {
	w.ledger.report = report
	login := &w.config.Login
	dialing, cancel := context.WithTimeout(ctx, login.Timeout)
	defer cancel()
	network, err := login.Dialer.Dial(dialing)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	s := &session{
		config: &w.config, source: w.source, ledger: w.ledger, topic: w.topic(),
		now: w.now,
	}
	began := w.now()
	conn, connack, err := mqttconn.Connect(dialing, network, s.connect(w.resumable),
		mqttconn.Receiver{MaxPacket: maxPacket, Publish: s.received})
	if err != nil {
		login.Dialer.Next()
		return fmt.Errorf("connect as %s: %w", s.clientID(), err)
	}
	s.conn, s.acks = conn, mqttconn.NewAcks(conn)
	w.resumable = true
	w.ledger.begin(began, connack.SessionPresent)
	conn.Start()
	err = s.serve(ctx, dialing, func() { w.setConn(conn) }, w.Publish)
	w.setConn(nil)
	if err != nil && ctx.Err() == nil {
		login.Dialer.Next() // this broker refuses the subscription, or ends its connections
	}
	conn.Close()
	return err
}

func (w *Watcher) setConn(conn *mqttconn.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = conn
}

// Publish publishes at QoS 1 by the session: a marker, or a command to the broker. It returns
// ErrNotConnected if there is no session.
func (w *Watcher) Publish(ctx context.Context, topic string, payload []byte) error {
	w.mu.Lock()
	conn := w.conn
	w.mu.Unlock()
	if conn == nil {
		return ErrNotConnected
	}
	ctx, cancel := context.WithTimeout(ctx, w.config.Login.Timeout)
	defer cancel()
	reason, err := conn.Publish(ctx, &mqttconn.Publish{Topic: topic, QoS: 1, Payload: payload})
	if err == nil && reason >= 0x80 {
		return &mqttconn.ReasonCodeError{Reason: reason}
	}
	return err
}

// session is the MQTT session of a Watcher over one connection. The broker keeps it for the next
// one.
type session struct {
	config *Config
	source Source
	ledger *ledger
	topic  string       // of markers
	now    func() int64 // Watcher.now
	conn   *mqttconn.Conn
	acks   *mqttconn.Acks
}

func (s *session) clientID() string {
	return s.config.Cluster + "-" + s.config.Node + "-presence"
}

func (s *session) connect(resume bool) *packets.Connect {
	age, receive := uint32(s.config.SessionExpiry/time.Second), uint16(65535)
	connect := s.config.Login.Packet(s.clientID(), !resume)
	connect.Properties.SessionExpiryInterval, connect.Properties.ReceiveMaximum = &age, &receive
	return connect
}

// serve subscribes, calls subscribed, and publishes markers until the connection or the context
// ends.
func (s *session) serve(ctx, subscribing context.Context, subscribed func(),
	publish func(context.Context, string, []byte) error,
) error {
	subscriptions := []packets.SubOptions{{Topic: s.topic, QoS: 1, RetainHandling: 2}}
	for _, filter := range s.source.Filters() {
		subscriptions = append(subscriptions, packets.SubOptions{Topic: filter, QoS: 1})
	}
	if err := s.conn.Subscribe(subscribing, subscriptions...); err != nil {
		return err
	}
	subscribed()
	s.config.Log.Info("client-disconnect feed is up", "client", s.clientID())
	ticker := time.NewTicker(s.config.Interval)
	defer ticker.Stop()
	for {
		payload := fmt.Appendf(nil, "%d %d", s.config.Boot, s.now())
		if err := publish(ctx, s.topic, payload); err != nil && ctx.Err() == nil {
			return fmt.Errorf("publish a marker: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.conn.Done():
			return s.conn.Err()
		case <-ticker.C:
		}
	}
}

// received takes a message from the connection: it gives it to the ledger, and acknowledges it.
func (s *session) received(message mqttconn.Message) {
	if message.QoS == 1 {
		// an error means that the connection has ended
		defer func(number uint64) { _ = s.acks.Done(number) }(s.acks.Arrived(message.PacketID))
	}
	if message.Topic == s.topic {
		boot, sent, _ := strings.Cut(string(message.Payload), " ")
		if at, err := strconv.ParseInt(sent, 10, 64); err == nil &&
			boot == strconv.FormatUint(s.config.Boot, 10) {
			s.ledger.marker(at)
		}
		return
	}
	if event, ok := s.source.Read(message.Topic, message.Payload, message.Retain); ok {
		s.ledger.event(event, s.now())
	}
}
