// Package brokercheck finds out what a broker does with a durable session, on which the promises of
// the store rest.
//
//	findings, err := brokercheck.Run(ctx, brokercheck.Config{Login: login, Cluster: "holdfast", Node: "check"})
//	for _, f := range findings { … f.OK … }
//
// It connects as nodes do, publishes and subscribes below holdfast/check/, and leaves nothing
// behind. It takes some seconds.
package brokercheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
)

// Config says how to connect. All fields are required.
type Config struct {
	Login *mqttconn.Login
	// The client ids are those of a node's own session: {Cluster}-{Node}-in and, of the publisher,
	// {Cluster}-{Node}-out-in. No node may be called so.
	Cluster, Node string
}

func (c *Config) sessionID() string { return c.Cluster + "-" + c.Node + "-in" }

func (c *Config) publisherID() string { return c.Cluster + "-" + c.Node + "-out-in" }

// Finding is what one check has found.
type Finding struct {
	Check string `json:"check"`
	Found string `json:"found"`
	// OK says that the store can rely on the broker there. It is true for what is only worth
	// knowing.
	OK  bool   `json:"ok"`
	Why string `json:"why"` // what depends on it
}

const (
	// messages is how many are unacknowledged at the takeover.
	messages = 50
	// patience is how long nothing may come until nothing more is expected.
	patience = 2 * time.Second
	// lifetime is the message expiry, and that of the session.
	lifetime = 60 * time.Second
	// aged is how long messages are unacknowledged before the takeover: long enough for their
	// expiry to show that it counts down.
	aged = 2500 * time.Millisecond
	// maxPacket is the largest packet of the session, and oversize what does not fit.
	maxPacket, oversize = 64 << 10, 100 << 10
)

// session is one connection of the session.
type session struct {
	conn     *mqttconn.Conn
	acks     *mqttconn.Acks
	present  bool
	received chan mqttconn.Message
}

// join connects by the session.
func (c *Config) join(ctx context.Context, cleanStart bool) (*session, error) {
	packet := c.Login.Packet(c.sessionID(), cleanStart)
	expiry, window := uint32(lifetime/time.Second), uint16(math.MaxUint16)
	packet.Properties.SessionExpiryInterval, packet.Properties.ReceiveMaximum = &expiry, &window
	s := &session{received: make(chan mqttconn.Message, 4*messages)}
	conn, connack, err := c.connect(ctx, packet, func(m mqttconn.Message) {
		select {
		case s.received <- m:
		default: // more than was ever published; what is missing shows
		}
	})
	if err != nil {
		return nil, err
	}
	s.conn, s.acks, s.present = conn, mqttconn.NewAcks(conn), connack.SessionPresent
	return s, nil
}

// connectClean connects with a clean start and a session that ends with the connection.
func (c *Config) connectClean(ctx context.Context, clientID string) (*mqttconn.Conn, error) {
	conn, _, err := c.connect(ctx, c.Login.Packet(clientID, true), func(mqttconn.Message) {})
	return conn, err
}

func (c *Config) connect(ctx context.Context, packet *packets.Connect,
	received func(mqttconn.Message),
) (*mqttconn.Conn, *packets.Connack, error) {
	network, err := c.Login.Dialer.Dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn, connack, err := mqttconn.Connect(ctx, network, packet,
		mqttconn.Receiver{MaxPacket: maxPacket, Publish: received})
	if err != nil {
		return nil, nil, fmt.Errorf("connect as %s: %w", packet.ClientID, err)
	}
	conn.Start()
	return conn, connack, nil
}

// take returns the messages that come until nothing has come for patience. With acknowledge it
// acknowledges each.
func (s *session) take(ctx context.Context, most int, acknowledge bool) (all []mqttconn.Message) {
	for len(all) < most {
		select {
		case m := <-s.received:
			all = append(all, m)
			number := s.acks.Arrived(m.PacketID)
			if acknowledge {
				_ = s.acks.Done(number) // the end of the connection shows in what is missing
			}
		case <-time.After(patience):
			return all
		case <-ctx.Done():
			return all
		}
	}
	return all
}

// check is the state of one run.
type check struct {
	config   *Config
	topic    string
	out      *mqttconn.Conn // the publisher
	findings []Finding
}

func (c *check) found(name string, ok bool, why, format string, arguments ...any) {
	c.findings = append(c.findings, Finding{name, fmt.Sprintf(format, arguments...), ok, why})
}

// Run makes the checks, and returns what they have found. An error means that not all could be made
// (the broker does not let this client in, or publish, or subscribe), or that the session could not
// be ended: then it ends by itself after a minute.
func Run(ctx context.Context, config Config) ([]Finding, error) {
	out, err := config.connectClean(ctx, config.publisherID())
	if err != nil {
		return nil, err
	}
	c := &check{config: &config, topic: "holdfast/check/" + config.Node, out: out}
	defer func() { c.out.Close() }()
	err = c.run(ctx)
	return c.findings, errors.Join(err, c.forget(ctx))
}

// forget ends the session at the broker, also if the context has ended.
func (c *check) forget(ctx context.Context) error {
	const longest = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	conn, err := c.config.connectClean(ctx, c.config.sessionID())
	if err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	conn.Close()
	return nil
}

func (c *check) run(ctx context.Context) error {
	first, err := c.config.join(ctx, true)
	if err != nil {
		return err
	}
	defer first.conn.Close()
	if err := first.conn.Subscribe(ctx,
		packets.SubOptions{Topic: c.topic, QoS: 1}); err != nil {
		return err
	}
	for i := range messages {
		if _, err := c.publish(ctx, c.topic, []byte(strconv.Itoa(i))); err != nil {
			return err
		}
	}
	began := time.Now()
	before := first.take(ctx, messages, false)
	if !backoff.Pause(ctx, aged-time.Since(began)) {
		return context.Cause(ctx)
	}
	second, err := c.config.join(ctx, false)
	if err != nil {
		return err
	}
	defer second.conn.Close()
	after := second.take(ctx, messages, true)
	c.judgeTakeover(first, second, before, after)
	return c.judgeSession(ctx, second)
}

func (c *check) publish(ctx context.Context, topic string, payload []byte) (reason byte,
	err error,
) {
	expiry := uint32(lifetime / time.Second)
	reason, err = c.out.Publish(ctx, &mqttconn.Publish{
		Topic: topic, QoS: 1, Payload: payload,
		Properties: &mqttconn.Properties{MessageExpiry: &expiry},
	})
	if err == nil && reason >= 0x80 {
		err = fmt.Errorf("the broker refused a message on %s with reason 0x%02X", topic, reason)
	}
	return reason, err
}

// judgeTakeover looks at what came before and after another connection took over the session.
func (c *check) judgeTakeover(first, second *session, before, after []mqttconn.Message) {
	c.found("the session is there after a takeover", second.present,
		"the next leader is given what the last one has not answered", "%v",
		yes(second.present))
	ended := false
	select {
	case <-first.conn.Done():
		ended = true
	case <-time.After(patience):
	}
	c.found("a takeover ends the other connection", ended,
		"an old leader must not receive beside the new one", "%v", yes(ended))
	inOrder, duplicates, lived := true, 0, int64(math.MaxInt64)
	for i, m := range after {
		inOrder = inOrder && string(m.Payload) == strconv.Itoa(i)
		if m.Redelivered {
			duplicates++
		}
		if m.Properties.MessageExpiry != nil && i < len(before) {
			lived = min(lived, int64(*m.Properties.MessageExpiry))
		}
	}
	c.found("what was not acknowledged comes again, in order", inOrder && len(after) == messages,
		"requests of a client are executed in its order, whichever node leads",
		"%d of %d, %s", len(after), messages,
		map[bool]string{true: "in order", false: "NOT in order"}[inOrder])
	c.found("messages in flight", true,
		"so many requests may be under way; a bound here bounds the throughput",
		"%s", map[bool]string{
			true:  fmt.Sprintf("at least %d", messages),
			false: strconv.Itoa(len(before)),
		}[len(before) == messages])
	c.found("redelivery has DUP", true, "a write without an identity is then not executed again",
		"%d of %d", duplicates, len(before))
	expiry := "not delivered"
	if lived < math.MaxInt64 {
		expiry = fmt.Sprintf("%d s left of %d after %.1f s", lived, lifetime/time.Second,
			aged.Seconds())
	}
	c.found("the message expiry counts down", true,
		"otherwise requests that their clients gave up are executed late", "%s", expiry)
}

// judgeSession looks at the session after the takeover.
func (c *check) judgeSession(ctx context.Context, s *session) error {
	if _, err := c.publish(ctx, c.topic, []byte("subscribed")); err != nil {
		return err
	}
	got := s.take(ctx, 1, true)
	c.found("the subscription is there after a takeover",
		len(got) == 1 && string(got[0].Payload) == "subscribed",
		"requests reach the next leader", "%v", yes(len(got) == 1))
	if err := c.judgeOversize(ctx, s); err != nil {
		return err
	}
	reason, err := c.publish(ctx, c.topic+"/nobody", nil)
	if err != nil {
		return err
	}
	c.found("a message without a subscriber is told", true,
		"watches of clients that have gone end by it, and clients learn that no node is there",
		"PUBACK 0x%02X", reason)
	return nil
}

// judgeOversize looks at what becomes of a message that is too large for the session, and of the
// one behind it.
func (c *check) judgeOversize(ctx context.Context, s *session) error {
	const why = "one large request must not stop all others"
	const name = "a message that is too large for the session holds nothing up"
	_, refused := c.publish(ctx, c.topic, make([]byte, oversize))
	select {
	case <-c.out.Done(): // the broker ends the connection of who publishes it
		out, err := c.config.connectClean(ctx, c.config.publisherID())
		if err != nil {
			return err
		}
		c.out.Close()
		c.out = out
	default:
	}
	if errors.Is(refused, mqttconn.ErrTooLarge) {
		c.found(name, true, why, "the broker takes packets of %d bytes at most",
			c.out.MaxPacket())
		return nil
	}
	if _, err := c.publish(ctx, c.topic, []byte("behind")); err != nil {
		return err
	}
	got := s.take(ctx, 1, true)
	passed := slices.ContainsFunc(got,
		func(m mqttconn.Message) bool { return string(m.Payload) == "behind" })
	c.found(name, passed, why, "%s", map[bool]string{
		true: "it is left out, and the next one comes", false: "nothing comes behind it",
	}[passed])
	return nil
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

// AllOK reports whether the store can rely on the broker.
func AllOK(findings []Finding) bool {
	return !slices.ContainsFunc(findings, func(f Finding) bool { return !f.OK })
}
