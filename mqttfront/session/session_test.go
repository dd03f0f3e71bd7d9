package session

import (
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
	blocked  bool
}

func (h *fakeHandler) Receive(context.Context, mqttconn.Message, time.Time, func()) { h.received++ }
func (h *fakeHandler) Blocked() bool                                                { return h.blocked }
func (h *fakeHandler) Flush()                                                       {}
func (h *fakeHandler) CoalescingDelay() time.Duration                               { return 0 }

func newWorld(network func(context.Context, string) (net.Conn, error)) *Environment {
	return &Environment{
		Login: &mqttconn.Login{
			Dialer:    &mqttconn.Dialer{Addresses: []mqttconn.Address{{Host: "broker:1883"}}, Timeout: time.Second, Network: network},
			KeepAlive: 30 * time.Second, Timeout: 10 * time.Second, Window: 16,
		},
		Wall: func() int64 { return time.Now().UnixMilli() }, Random: func() uint64 { return 1 },
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

// newOwn returns a node's own session.
func newOwn(network func(context.Context, string) (net.Conn, error)) *Own {
	return NewOwn(newConfig(), newWorld(network), Replies{})
}

// newCluster returns the cluster's session, of a node that leads.
func newCluster(network func(context.Context, string) (net.Conn, error)) (*Cluster, *fakeHandler) {
	handler, env := &fakeHandler{}, newWorld(network)
	return NewCluster(newConfig(), env, handler, env.Wall, func(context.Context) error { return nil }), handler
}

// start runs a session until stop is called.
func start(t *testing.T, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// connected returns a connection of the session, and a function that gives it messages.
func connected(t *testing.T, s *session) (c *connection, receive func(topic string, payload []byte)) {
	near, far := net.Pipe()
	conn := mqttconn.NewConn(near, mqttconn.Receiver{MaxPacket: MaxPacket})
	t.Cleanup(func() { _, _ = conn.Close(), far.Close() })
	c = &connection{
		traits: s.traits, subscribed: s.subscribed, since: time.Now(), handlerCtx: t.Context(), reason: make(chan error, 1),
		acks: mqttconn.NewAcks(conn),
	}
	number := uint16(0)
	return c, func(topic string, payload []byte) {
		number++
		c.received(mqttconn.Message{Publish: &paho.Publish{Topic: topic, QoS: 1, PacketID: number, Payload: payload}})
	}
}

// probe returns the payload of a probe that this process sent at a moment. A probe is a message that a node sends to itself through the broker.
func (s *session) probe(sent time.Time) []byte {
	return fmt.Appendf(nil, "%d %d %d", s.probes.proberID, sent.Sub(s.probes.start).Microseconds(), sent.UnixMilli())
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

// A node reaches the second broker although the first one refuses its connections.
func TestSecondBrokerIsReachedIfTheFirstRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		works := &forgetfulBroker{connects: make(chan packets.Connect, 100)}
		r := newOwn(func(ctx context.Context, address string) (net.Conn, error) {
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
		stop := start(t, r.Run)
		time.Sleep(28 * time.Second)
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// If the broker loses the subscription of a session that is up, it acknowledges probes and delivers none. The node then
// connects again. It waits for a broker that hangs and acknowledges nothing: the session still has the requests. The cluster's
// session is never begun clean, and a node's own always is.
func TestSessionWhoseSubscriptionIsLostConnectsAgain(t *testing.T) {
	for name, test := range map[string]struct {
		forgets int
		silent  bool
		want    int // connections within 28 s
	}{
		"lost at one connection": {1, false, 2},
		"never lost":             {0, false, 1},
		"a broker stands still":  {0, true, 1},
	} {
		for _, isOwn := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, own %v", name, isOwn), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := &forgetfulBroker{forgets: test.forgets, silent: test.silent, connects: make(chan packets.Connect, 100)}
					own, requests := newOwn(b.dial), (*Cluster)(nil)
					run, clientID := own.Run, "holdfast-n1-in"
					if !isOwn {
						requests, _ = newCluster(b.dial)
						run, clientID = requests.Run, "holdfast-ingest"
					}
					stop := start(t, run)
					time.Sleep(28 * time.Second)
					if err := own.Err(); isOwn && (err == nil) != !test.silent {
						t.Errorf("ready: %v", err)
					}
					stop()
					if got := len(b.connects); got != test.want {
						t.Errorf("%d connections, want %d", got, test.want)
					}
					for number := range len(b.connects) {
						connect := <-b.connects
						if expiry := connect.Properties.SessionExpiryInterval; connect.ClientID != clientID || connect.CleanStart != isOwn || expiry == nil || (*expiry == 0) != isOwn {
							t.Errorf("connection %d: %+v", number, connect)
						}
					}
				})
			})
		}
	}
}

// † A request is not taken if the last probe that returned was sent longer than SessionExpiry ago. The broker may have received
// the request that long ago, and the dedup table may have forgotten it. That happens after the process was stopped: it sends
// no probes, and requests stay in its socket. Requests are taken again when a younger probe has returned.
func TestRequestLongAfterTheLastProbeIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handler := newCluster(nil)
		_, receive := connected(t, s.session)
		expect := func(taken int, when string) {
			t.Helper()
			if receive(topics.Invoke, nil); handler.received != taken {
				t.Fatalf("%s: %d requests are taken, want %d", when, handler.received, taken)
			}
		}
		probe := s.probe(time.Now())
		time.Sleep(s.config.SessionExpiry - time.Second)
		expect(1, "before the first probe")
		receive(s.probes.topic, probe) // it returns late; the broker received what follows after it was sent
		expect(2, "behind a probe of 59 s")
		time.Sleep(2 * time.Second)
		expect(2, "61 s after the probe")
		expect(2, "behind one that was not taken")
		receive(s.probes.topic, s.probe(time.Now().Add(-time.Minute-time.Second)))
		expect(2, "behind a probe of 61 s")
		receive(s.probes.topic, []byte("forged"))
		expect(2, "behind what is no probe")
		receive(s.probes.topic, s.probe(time.Now().Add(-time.Second)))
		expect(3, "behind a young probe")
	})
}

// If no probe ever returns, because the broker's access rules deny probes, the age of requests is not known, and they are taken.
func TestRequestsAreTakenWithoutProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handler := newCluster(nil)
		_, receive := connected(t, s.session)
		time.Sleep(2 * s.config.SessionExpiry)
		if receive(topics.Invoke, nil); handler.received != 1 {
			t.Error("it is not taken")
		}
	})
}

// † A node whose leadership is not confirmed does not connect: it would take the cluster's session from the leader.
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
				env := newWorld(network)
				s := NewCluster(newConfig(), env, &fakeHandler{}, env.Wall, func(context.Context) error { return test.confirm })
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

// The cluster's session counts as silent from its beginning until it is connected. Err reports it when that takes longer than SilenceLimit.
func TestLeaderWithoutItsSessionIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newWorld(nil)
		s := NewCluster(newConfig(), env, &fakeHandler{}, env.Wall, nil)
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
