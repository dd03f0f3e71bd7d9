package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/mqttconn"

	"github.com/prometheus/client_golang/prometheus"
)

// traits are the configuration and the objects that a session shares with its connections. They do
// not change.
type traits struct {
	config  *Config
	env     *Environment
	handler Handler // takes requests; nil for a node's own session, which has none
	log     Log     // set with handler
	// confirm returns nil when the node led at some moment after the call; set with handler.
	confirm  func(ctx context.Context) error
	clientID string
	status   *status
	probes   *prober
	// replies is a further topic that the session subscribes to, and what takes its messages; empty
	// for none.
	replies Replies
	sender  *sender
}

// bringsRequests reports whether this is the cluster's session.
func (t *traits) bringsRequests() bool { return t.handler != nil }

// Replies is a topic of a node's own session, on which replies to what it publishes come.
type Replies struct {
	Topic   string
	Receive func(*mqttconn.Publish)
	// Begun is called when the topic is subscribed to; it may be nil.
	Begun func()
}

// sender publishes by the connection that a session has.
type sender struct {
	mu   sync.Mutex
	conn *mqttconn.Conn // nil while there is none
	err  error          // why there is none
}

func (s *sender) set(conn *mqttconn.Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.err = conn, err
}

// publish publishes a message at QoS 1, and waits for its PUBACK.
func (s *sender) publish(ctx context.Context, message *mqttconn.Publish) error {
	s.mu.Lock()
	conn, err := s.conn, s.err
	s.mu.Unlock()
	if err != nil {
		return err
	}
	reason, err := conn.Publish(ctx, message)
	if err == nil && reason >= 0x80 {
		return deniedError{&mqttconn.ReasonCodeError{Reason: reason}}
	}
	return err
}

// deniedError says that the broker's rules forbid something.
type deniedError struct{ error }

// Denied reports that this is a denial.
func (deniedError) Denied() bool { return true }

// Unwrap returns the broker's reason.
func (e deniedError) Unwrap() error { return e.error }

var errNotConnected = errors.New("no session with the broker")

// session is a session with the broker, over one connection after the other.
type session struct {
	traits
	// connected is 1 while the session is up, else 0; nil for a session without a metric.
	connected prometheus.Gauge
	current   atomic.Pointer[connection] // nil between two connections
}

// newSession returns a session that is not connected yet. topic is the topic of its probes.
func newSession(config *Config, env *Environment, clientID, topic string) *session {
	return &session{traits: traits{
		config: config, env: env, clientID: clientID,
		status: newStatus(config.ProbeInterval), sender: &sender{err: errNotConnected},
		probes: newProber(config, env, topic),
	}}
}

// DeliveringSince returns when the broker acknowledged the subscriptions of the last connection;
// before the first connection, when the session was created. What the broker received before that
// moment need not have come to this node.
func (s *session) DeliveringSince() time.Time {
	return s.status.subscribed()
}

// Silence returns how long the session has been down or, while it is up, has delivered nothing
// (status.silence).
func (s *session) Silence(now time.Time) time.Duration { return s.status.silence(now) }

// setStatus notes what the session is doing, and returns whether it was up.
func (s *session) setStatus(up bool, text string) (wasUp bool) {
	if s.connected != nil {
		value := 0.0
		if up {
			value = 1
		}
		s.connected.Set(value)
	}
	return s.status.set(up, text)
}
