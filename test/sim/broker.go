package sim

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/test/sim/schedule"
)

// brokerOptions are the behaviours in which MQTT brokers differ.
type brokerOptions struct {
	tellsNoSubscriber bool   // answers with PUBACK 0x10 if a topic has no subscriber
	sendsNoDisconnect bool   // closes the connection without a DISCONNECT
	receiveMaximum    uint16 // Receive Maximum that it grants to publishers
	inFlight          int    // most unacknowledged messages to one client
}

// broker is an MQTT 5 broker with only the features that Holdfast and its clients use: sessions,
// queues, QoS 1, retained messages, message expiry, session takeover. Nodes send it packets over
// connections; simulated clients call its methods.
type broker struct {
	network *network
	options brokerOptions
	address string

	// published is called with each message that a node publishes.
	published func(*packets.Publish)

	mu       schedule.Mutex
	up       bool
	sessions map[string]*session
	stalled  string // id of the client that the broker sends nothing to for now
	// beginning of the topics whose messages it delivers and does not acknowledge; empty for none
	deaf     string
	losses   []sessionLoss // ends of sessions that had a subscription
	retained map[string]*message
	// the retained messages that a restart without sessions brings back
	saved  map[string]*message
	stores int // how often retained was changed since it was saved
	stack  *stack
	work   sync.WaitGroup
}

// sessionLoss is the end of a session.
type sessionLoss struct {
	client string
	at     time.Time
}

// session is what the broker keeps for a client. It is guarded by broker.mu.
type session struct {
	id string
	// how long the session outlives its connection; 0 ends it with the connection
	expiry   time.Duration
	filters  []string // topic filters: at QoS 0 if they end with #, else at QoS 1
	queue    []*message
	flight   []*delivery // sent and not acknowledged, in order
	ended    []ended     // acknowledged lately, in order; see stop
	again    int         // that many deliveries at the beginning of flight have to be sent again
	packetID uint16
	limit    int // the most deliveries in flight
	attached *attachment
	expires  *time.Timer
}

// ended is a message that its client has acknowledged.
type ended struct {
	*message
	at time.Time
}

// attachment is a client's connection to its session.
type attachment struct {
	session *session
	wake    chan struct{} // receives when there may be something to send; has room for one
	gone    chan struct{} // closed when the connection ends
	reason  byte          // reason code of the DISCONNECT; 0 sends no DISCONNECT
	once    sync.Once
}

func (a *attachment) end(reason byte) {
	a.once.Do(func() {
		a.reason = reason
		close(a.gone)
	})
}

func (a *attachment) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// message is a publication.
type message struct {
	topic   string
	payload []byte
	// properties are shared by all receivers of the message. Their message expiry is the one that
	// the publisher sent.
	properties *packets.Properties
	expires    time.Time // zero for never
	// from a publisher: retain it; to a subscriber: it was retained before the subscription
	retain bool
	qos0   bool // it is delivered at QoS 0
}

// delivery is a message on its way to one client.
type delivery struct {
	*message
	id  uint16
	dup bool
}

var errBrokerDown = errors.New("the broker is down")

func newBroker(n *network, options brokerOptions) *broker {
	return &broker{
		network: n, options: options, address: "broker:1883",
		sessions: make(map[string]*session), retained: make(map[string]*message),
	}
}

// start begins to listen.
func (b *broker) start() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stack = b.network.newStack("broker")
	listener, err := b.stack.listen(b.address)
	if err != nil {
		return err
	}
	b.up = true
	b.work.Go(func() {
		for {
			accepted, err := listener.Accept()
			if err != nil {
				return
			}
			b.work.Go(func() { b.serve(accepted.(*conn)) })
		}
	})
	return nil
}

// bringBack lets the broker have in its queue what a client acknowledged up to age ago, as one that
// was killed and has its last save. What was queued then comes as if for the first time. Messages
// without an identity stay away: nothing could be said of them.
func (b *broker) bringBack(id string, age time.Duration) (count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, now := b.sessions[id], time.Now()
	if s == nil {
		return 0
	}
	var queue []*message
	for _, e := range s.ended {
		if now.Sub(e.at) <= age && len(e.properties.CorrelationData) >= 16 {
			queue = append(queue, e.message)
		}
	}
	for _, d := range s.flight {
		queue = append(queue, d.message)
	}
	count = len(queue) - len(s.flight)
	s.queue, s.flight, s.again, s.ended = append(queue, s.queue...), nil, 0, nil
	return count
}

// setDeaf makes the broker deliver and not acknowledge what is published on topics with this
// beginning; none if it is empty.
func (b *broker) setDeaf(topics string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deaf = topics
}

// isDeaf reports whether the broker does not acknowledge what is published on a topic.
func (b *broker) isDeaf(topic string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.deaf != "" && strings.HasPrefix(topic, b.deaf)
}

// stop ends all connections. Without keepSessions the broker forgets all sessions, as one without
// persistence does, and its retained messages are again what they were when they were last saved.
func (b *broker) stop(keepSessions bool) {
	b.mu.Lock()
	b.up = false
	b.stack.die(false) // the other sides see the end
	for _, s := range b.sessions {
		if s.attached != nil {
			b.detachLocked(s.attached)
		}
		if !keepSessions {
			b.dropLocked(s)
		}
	}
	if !keepSessions {
		b.retained, b.stores = maps.Clone(b.saved), 0
		if b.retained == nil {
			b.retained = make(map[string]*message)
		}
	}
	b.mu.Unlock()
	b.work.Wait()
}

// attach connects a client to its session, and reports whether there was one. An earlier connection
// under the same id is taken over: it ends with reason 0x8E.
func (b *broker) attach(id string, cleanStart bool, expiry time.Duration, limit int) (*attachment,
	bool, error,
) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.up {
		return nil, false, errBrokerDown
	}
	s := b.sessions[id]
	if s != nil && s.attached != nil {
		s.attached.end(reasonTakenOver)
		b.detachLocked(s.attached)
		s = b.sessions[id]
	}
	if s != nil && cleanStart {
		b.dropLocked(s)
		s = nil
	}
	present := s != nil
	if s == nil {
		s = &session{id: id}
		b.sessions[id] = s
	}
	if s.expires != nil {
		s.expires.Stop()
		s.expires = nil
	}
	s.expiry, s.again, s.limit = expiry, len(s.flight), min(limit, b.options.inFlight)
	for _, d := range s.flight {
		d.dup = true
	}
	a := &attachment{session: s, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	s.attached = a
	a.poke()
	return a, present, nil
}

// Reasons of a DISCONNECT.
const (
	reasonTakenOver = 0x8E
)

// detach ends a client's connection. Its session remains until it expires.
func (b *broker) detach(a *attachment) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.detachLocked(a)
}

func (b *broker) detachLocked(a *attachment) {
	s := a.session
	a.end(0)
	if s.attached != a {
		return
	}
	s.attached = nil
	if s.expiry <= 0 {
		b.dropLocked(s)
		return
	}
	s.expires = time.AfterFunc(s.expiry, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.sessions[s.id] == s && s.attached == nil {
			b.dropLocked(s)
		}
	})
}

// dropLocked forgets a session.
func (b *broker) dropLocked(s *session) {
	if s.expires != nil {
		s.expires.Stop()
	}
	if b.sessions[s.id] == s {
		delete(b.sessions, s.id)
		if len(s.filters) > 0 {
			b.losses = append(b.losses, sessionLoss{s.id, time.Now()})
		}
	}
}

// close stops the broker and all timers of sessions, at the end of a run.
func (b *broker) close() {
	b.stop(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sessions {
		if s.expires != nil {
			s.expires.Stop()
		}
	}
}

func (b *broker) subscribe(a *attachment, filter string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(a.session.filters, filter) {
		a.session.filters = append(a.session.filters, filter)
	}
	if strings.HasSuffix(filter, "#") {
		for _, topic := range slices.Sorted(maps.Keys(b.retained)) {
			if m := *b.retained[topic]; matches(filter, topic) {
				m.qos0 = true
				a.session.queue = append(a.session.queue, &m)
			}
		}
		a.poke()
	}
}

func (b *broker) unsubscribe(a *attachment, filter string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a.session.filters = slices.DeleteFunc(a.session.filters,
		func(other string) bool { return other == filter })
}

// retainLocked keeps a message for later subscribers. An empty message removes the retained one of
// its topic, as in MQTT.
func (b *broker) retainLocked(m *message) {
	const saveEvery = 50 // how many changes of retained messages lie between two saves
	if b.stores++; b.stores >= saveEvery {
		b.saved, b.stores = maps.Clone(b.retained), 0
	}
	if len(m.payload) == 0 {
		delete(b.retained, m.topic)
		return
	}
	b.retained[m.topic] = m
}

// retainedBelow returns the retained messages of topics that begin with prefix: what a new
// subscriber would get.
func (b *broker) retainedBelow(prefix string) map[string]*message {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := make(map[string]*message)
	for topic, m := range b.retained {
		if strings.HasPrefix(topic, prefix) {
			found[topic] = m
		}
	}
	return found
}

// publish queues a message for each subscriber, and returns their client ids.
func (b *broker) publish(m *message) (receivers []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.up {
		return nil, errBrokerDown
	}
	if m.retain {
		b.retainLocked(m)
	}
	for _, s := range b.sessions {
		at := slices.IndexFunc(s.filters,
			func(filter string) bool { return matches(filter, m.topic) })
		if at < 0 {
			continue
		}
		receivers = append(receivers, s.id)
		sent := *m
		sent.retain, sent.qos0 = false, strings.HasSuffix(s.filters[at], "#")
		s.queue = append(s.queue, &sent)
		if s.attached != nil {
			s.attached.poke()
		}
	}
	return receivers, nil
}

// stall stops deliveries to a client until the next call, which names another client, or none ("").
func (b *broker) stall(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	released := b.sessions[b.stalled]
	b.stalled = id
	if released != nil && released.attached != nil {
		released.attached.poke()
	}
}

// next returns what may be sent to a client now.
func (b *broker) next(a *attachment) (out []delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := a.session
	if s.attached != a || s.id == b.stalled {
		return nil
	}
	for _, d := range s.flight[:min(s.again, len(s.flight))] {
		out = append(out, *d)
	}
	s.again = 0
	now := time.Now()
	for len(s.queue) > 0 && (len(s.flight) < s.limit || s.queue[0].qos0) {
		m := s.queue[0]
		s.queue = s.queue[1:]
		if !m.expires.IsZero() && !now.Before(m.expires) {
			continue
		}
		if m.qos0 {
			out = append(out, delivery{message: m})
			continue
		}
		if s.packetID++; s.packetID == 0 {
			s.packetID = 1
		}
		d := &delivery{message: m, id: s.packetID}
		s.flight = append(s.flight, d)
		out = append(out, *d)
	}
	return out
}

// acknowledge removes a delivery that its client has acknowledged.
func (b *broker) acknowledge(a *attachment, id uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := a.session
	if s.attached != a {
		return
	}
	now := time.Now()
	for len(s.ended) > 0 && now.Sub(s.ended[0].at) > time.Minute {
		s.ended = s.ended[1:]
	}
	s.flight = slices.DeleteFunc(s.flight, func(d *delivery) bool {
		if d.id == id && s.id == requestSession {
			s.ended = append(s.ended, ended{d.message, now})
		}
		return d.id == id
	})
	a.poke()
}

// lost returns the ends of sessions that had a subscription.
func (b *broker) lost() []sessionLoss {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.losses)
}

// lostBetween reports whether a client's session ended between two moments.
func (b *broker) lostBetween(client string, from, to time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.losses, func(l sessionLoss) bool {
		return l.client == client && !l.at.Before(from) && !l.at.After(to)
	})
}

// matches reports whether a topic matches a filter. The only wildcards that are used here are a +
// or a # at the end.
func matches(filter, topic string) bool {
	if below, wild := strings.CutSuffix(filter, "#"); wild {
		return strings.HasPrefix(topic, below)
	}
	prefix, wild := strings.CutSuffix(filter, "+")
	if !wild {
		return filter == topic
	}
	rest, ok := strings.CutPrefix(topic, prefix)
	return ok && !strings.Contains(rest, "/")
}
