package ingest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/mqttconn"
	"holdfast/internal/mqttconn/mqtttest"
	"holdfast/internal/topics"
)

// fakeHandler counts what it receives.
type fakeHandler struct {
	received int
	begun    int
	dropped  []time.Time // arguments of DropSince
	blocked  bool
}

func (h *fakeHandler) Receive(context.Context, mqttconn.Message, Arrival, func()) {
	h.received++
}
func (h *fakeHandler) Blocked() bool                  { return h.blocked }
func (h *fakeHandler) Flush()                         {}
func (h *fakeHandler) CoalescingDelay() time.Duration { return 0 }
func (h *fakeHandler) DropSince(moment time.Time)     { h.dropped = append(h.dropped, moment) }
func (h *fakeHandler) SessionBegun()                  { h.begun++ }

type fakeContact struct{ wall int64 }

func (c *fakeContact) Load() (int64, bool)   { return c.wall, c.wall != 0 }
func (c *fakeContact) Save(wall int64) error { c.wall = wall; return nil }

// rig is a node's session with fakes of what it uses.
type rig struct {
	*NodeSession
	handler *fakeHandler
	contact *fakeContact
	barrier *Barrier
}

func newWorld(network func(context.Context, string) (net.Conn, error), contact ContactStore) *Environment {
	return &Environment{
		Login: &mqttconn.Login{
			Dialer:    &mqttconn.Dialer{Addresses: []mqttconn.Address{{Host: "broker:1883"}}, Timeout: time.Second, Network: network},
			KeepAlive: 30 * time.Second, Timeout: 10 * time.Second, Window: 16,
		},
		Contact: contact, Wall: func() int64 { return time.Now().UnixMilli() }, Random: func() uint64 { return 1 },
		Pause: func(ctx context.Context, d time.Duration) {
			select {
			case <-ctx.Done():
			case <-time.After(d):
			}
		},
		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry(), prometheus.NewCounter(prometheus.CounterOpts{Name: "stale"})),
	}
}

func newConfig() *Config {
	return &Config{
		Cluster: "holdfast", Node: "n1", SessionExpiry: time.Minute, ProbeInterval: time.Second, BackoffMin: 50 * time.Millisecond, BackoffMax: 2 * time.Second,
	}
}

func newRig(network func(context.Context, string) (net.Conn, error)) *rig {
	r := &rig{handler: &fakeHandler{}, contact: &fakeContact{}, barrier: NewBarrier()}
	r.NodeSession = NewNodeSession(newConfig(), newWorld(network, r.contact), r.handler, r.barrier, true, Replies{})
	return r
}

// start runs the session until stop is called.
func (r *rig) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// connected returns a connection of the session, and a function that gives it messages.
func (r *rig) connected(t *testing.T) (c *connection, receive func(topic string, payload []byte)) {
	near, far := net.Pipe()
	conn := mqttconn.NewConn(near, mqttconn.Receiver{MaxPacket: MaxPacket})
	t.Cleanup(func() { _, _ = conn.Close(), far.Close() })
	c = &connection{
		traits: r.traits, subscribed: r.subscribed, since: time.Now(), pauses: newPauseDetector(), handlerCtx: t.Context(), reason: make(chan error, 1),
		acks: mqttconn.NewAcks(conn),
	}
	number := uint16(0)
	return c, func(topic string, payload []byte) {
		number++
		c.received(mqttconn.Message{Publish: &paho.Publish{Topic: topic, QoS: 1, PacketID: number, Payload: payload}})
	}
}

// probe returns the payload of a probe that this process sent at a moment. A probe is a message that a node sends to itself through the broker.
func (r *rig) probe(sent time.Time) []byte {
	return fmt.Appendf(nil, "%d %d %d", r.probes.proberID, sent.Sub(r.probes.start).Microseconds(), sent.UnixMilli())
}

// keepingBroker keeps every session, whatever ends it, with one old request in it.
type keepingBroker struct{ connects chan packets.Connect }

func (b *keepingBroker) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	go b.serve(far)
	return near, nil
}

func (b *keepingBroker) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for reader := bufio.NewReader(conn); ; {
		packet, err := mqttconn.ReadPacket(reader, 1<<20)
		if err != nil {
			return
		}
		connect, ok := packet.Content.(*packets.Connect)
		if !ok {
			continue
		}
		b.connects <- *connect
		// The request is sent before the CONNACK, which no broker does. It stands for one that follows at once: the node may read that one before it has handled
		// the CONNACK.
		var sent bytes.Buffer
		if !connect.CleanStart {
			sent.Write(mqttconn.AppendPublish(nil, &packets.Publish{Topic: topics.Invoke, QoS: 1, PacketID: 1, Properties: &packets.Properties{}}))
		}
		if _, err := (&packets.Connack{SessionPresent: !connect.CleanStart, Properties: &packets.Properties{}}).WriteTo(&sent); err != nil {
			return
		}
		if _, err := conn.Write(sent.Bytes()); err != nil {
			return
		}
	}
}

// A node that may not resume its session ends it by an extra connection. It begins the next session without a clean start, so that the broker persists it.
// If the broker has kept the old session all the same, the node takes no request from it, and connects again with a clean start.
func TestNoRequestIsTakenFromAnEndedSession(t *testing.T) {
	broker := &keepingBroker{connects: make(chan packets.Connect, 100)}
	r := newRig(broker.dial)
	stop := r.start(t)
	for i, want := range []struct {
		cleanStart, expires bool // expires: the session ends with the connection
	}{{true, true}, {false, false}, {true, false}} {
		connect := <-broker.connects
		if connect.ClientID != "holdfast-n1-in" || connect.CleanStart != want.cleanStart || (connect.Properties.SessionExpiryInterval == nil) != want.expires {
			t.Errorf("connection %d: %+v", i, connect)
		}
	}
	stop()
	if r.handler.received != 0 {
		t.Error("an old request was taken from a session that was ended")
	}
}

// forgetfulBroker acknowledges everything, and delivers to a connection what that connection publishes, unless it has lost the connection's subscription.
type forgetfulBroker struct {
	forgets  int  // how many connections, from the first, lose their subscription
	silent   bool // no publication is acknowledged
	connects chan packets.Connect
}

func (b *forgetfulBroker) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	b.forgets--
	forgets := b.forgets >= 0
	go mqtttest.Serve(far, func(packet *packets.ControlPacket) (packets.Packet, bool) {
		switch content := packet.Content.(type) {
		case *packets.Connect:
			b.connects <- *content
		case *packets.Publish:
			if b.silent {
				return &packets.Pingresp{}, true
			}
			if !forgets {
				_, err := far.Write(mqttconn.AppendPublish(nil, &packets.Publish{Topic: content.Topic, QoS: 1, PacketID: 1, Payload: content.Payload, Properties: &packets.Properties{}}))
				return nil, err == nil
			}
		case *packets.Pingreq:
			return &packets.Pingresp{}, true
		}
		return nil, true
	})
	return near, nil
}

// A node reaches the second broker although the first one refuses its connections, also if it must end its old session before it begins a new one.
func TestSecondBrokerIsReachedIfTheFirstRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		works := &forgetfulBroker{connects: make(chan packets.Connect, 100)}
		r := newRig(func(ctx context.Context, address string) (net.Conn, error) {
			if address == "works:1883" {
				return works.dial(ctx, address)
			}
			near, far := net.Pipe()
			go mqtttest.Serve(far, func(*packets.ControlPacket) (packets.Packet, bool) {
				return &packets.Connack{ReasonCode: packets.ConnackServerUnavailable, Properties: &packets.Properties{}}, true
			})
			return near, nil
		})
		r.env.Login.Dialer.Addresses = []mqttconn.Address{{Host: "refuses:1883"}, {Host: "works:1883"}}
		stop := r.start(t)
		time.Sleep(28 * time.Second)
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// If the broker loses the subscription of a session that is up, it acknowledges probes and delivers none. The node then ends the session by a connection with a
// clean start and without a session expiry, and begins a new one, because requests were missed. It waits for a broker that hangs and acknowledges nothing: the session still has the requests.
func TestSessionWhoseSubscriptionIsLostBeginsAnew(t *testing.T) {
	for name, test := range map[string]struct {
		forgets int
		silent  bool
		want    int // sessions within 28 s
	}{
		"lost at one connection": {2, false, 2}, // a session takes two connections: the first one ends the old session
		"never lost":             {0, false, 1},
		"a broker stands still":  {0, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &forgetfulBroker{forgets: test.forgets, silent: test.silent, connects: make(chan packets.Connect, 100)}
				r := newRig(b.dial)
				stop := r.start(t)
				time.Sleep(28 * time.Second)
				if err := r.Err(); (err == nil) != !test.silent {
					t.Errorf("ready: %v", err)
				}
				stop()
				if got := len(b.connects); got != 2*test.want {
					t.Errorf("%d connections, want %d", got, 2*test.want)
				}
				for number := range len(b.connects) {
					ends := number%2 == 0 // the connection only ends the old session
					connect := <-b.connects
					if connect.ClientID != "holdfast-n1-in" || connect.CleanStart != ends || (connect.Properties.SessionExpiryInterval == nil) != ends {
						t.Errorf("connection %d: %+v, want one that ends the old session: %v", number, connect, ends)
					}
				}
			})
		})
	}
}

// A request is not taken if the last probe that returned was sent longer than SessionExpiry ago. The broker may have received the request that long ago,
// and the dedup table may have forgotten it. That happens after the process was stopped: it sends no probes, and requests stay in its socket.
func TestRequestLongAfterTheLastProbeIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(nil)
		c, receive := r.connected(t)
		probe := r.probe(time.Now())
		time.Sleep(r.config.SessionExpiry - time.Second)
		receive(topics.Invoke, nil)
		receive(r.probes.topic, probe) // it returns late; the broker received what follows after it was sent
		receive(topics.Invoke, nil)
		if r.handler.received != 2 {
			t.Fatalf("%d requests are received", r.handler.received)
		}
		time.Sleep(2 * time.Second)
		receive(topics.Invoke, nil)
		receive(topics.Invoke, nil)
		if r.handler.received > 2 || len(r.handler.dropped) != 1 {
			t.Error("a request that may be older than the session's age was taken")
		}
		// A request that was not taken may be an earlier one of the same client. So no later request is taken, however young it is.
		time.Sleep(contactSaveInterval)
		receive(r.probes.topic, r.probe(time.Now().Add(-time.Second)))
		receive(topics.Invoke, nil)
		if r.handler.received > 2 {
			t.Error("a request was taken behind those that were left out")
		}
		if wall, _ := r.contact.Load(); wall != 0 {
			t.Error("a restart would resume the session")
		}
		select {
		case err := <-c.reason:
			if !errors.Is(err, errStale) {
				t.Error(err)
			}
		default:
			t.Error("the session goes on")
		}
		if _, resumed := r.probes.resumable(); resumed {
			t.Error("the session is resumed")
		}
	})
}

// If no probe ever returns, because the broker's access rules deny probes, the age of requests is not known, and they are taken.
func TestRequestsAreTakenWithoutProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(nil)
		c, receive := r.connected(t)
		for range 2 * r.config.SessionExpiry / r.config.ProbeInterval {
			time.Sleep(r.config.ProbeInterval)
			c.pauses.record(c.handleGap)
		}
		receive(topics.Invoke, nil)
		if r.handler.received != 1 || len(c.reason) != 0 {
			t.Errorf("%d received, %d reasons to end the session", r.handler.received, len(c.reason))
		}
	})
}

// † A process that was stopped for too long before its first probe returned takes no request when it resumes. It does not know when the broker received the
// requests in its socket, and the dedup table may have forgotten them. It does not matter which goroutine runs first.
func TestRequestAfterAStopBeforeTheFirstProbeIsNotTaken(t *testing.T) {
	for name, test := range map[string]struct {
		queued, stopped time.Duration // longest time in the broker's queue before the connection; how long the process is stopped
		beats, taken    bool          // beats: the pause detector runs before the request is read
	}{
		"the request is read first":               {0, time.Minute + time.Second, false, false},
		"the detector comes first":                {0, time.Minute + time.Second, true, false},
		"stopped for less than the age":           {0, time.Minute - time.Second, true, true},
		"the broker had kept it for a while, too": {30 * time.Second, 31 * time.Second, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(nil)
				c, receive := r.connected(t)
				c.maxQueuedAge = test.queued
				time.Sleep(test.stopped)
				if test.beats {
					c.pauses.record(c.handleGap)
				}
				receive(topics.Invoke, nil)
				if taken := r.handler.received == 1; taken != test.taken || (len(c.reason) == 0) != test.taken {
					t.Errorf("taken %v, %d reasons to end the session", taken, len(c.reason))
				}
			})
		})
	}
}

// † A node whose leadership is not confirmed does not connect: it would take the ingest session from the leader.
func TestLeaderConnectsOnlyWhenConfirmed(t *testing.T) {
	for name, test := range map[string]struct {
		confirm error
		want    bool
	}{"confirmed": {nil, true}, "deposed": {errors.New("there is a later term"), false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dialled := false
				network := func(context.Context, string) (net.Conn, error) {
					dialled = true
					return nil, errors.New("nobody listens")
				}
				env := newWorld(network, &fakeContact{})
				s := NewLeaderSession(newConfig(), env, &fakeHandler{}, NewBarrier(), env.Wall, func(context.Context) error { return test.confirm })
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				s.Run(ctx)
				if dialled != test.want {
					t.Errorf("connected: %v", dialled)
				}
			})
		})
	}
}

// A leader's session counts as silent from its beginning until it is connected. Err reports it when that takes longer than SilenceLimit.
func TestLeaderWithoutItsSessionIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newWorld(nil, &fakeContact{})
		s := NewLeaderSession(newConfig(), env, &fakeHandler{}, NewBarrier(), env.Wall, nil)
		if err := s.Err(); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Second)
		if silence := s.Silence(time.Now()); silence != 3*time.Second || s.Err() == nil {
			t.Errorf("silent for %v: %v", silence, s.Err())
		}
		s.setStatus(true, "connected")
		if silence := s.Silence(time.Now()); silence != 0 || s.Err() != nil {
			t.Errorf("silent for %v: %v", silence, s.Err())
		}
		time.Sleep(time.Minute)
		if silence := s.Silence(time.Now()); silence != time.Minute {
			t.Errorf("mute for a minute: %v", silence)
		}
	})
}
