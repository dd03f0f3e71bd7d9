package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
	"holdfast/internal/mqttconn/mqtttest"
	"holdfast/internal/topics"
)

// fakeHandler counts what it receives.
type fakeHandler struct {
	arrivals []Arrival
	done     []func()
	blocked  bool
}

func (h *fakeHandler) Receive(_ context.Context, _ mqttconn.Message, arrival Arrival, done func()) {
	h.arrivals, h.done = append(h.arrivals, arrival), append(h.done, done)
}
func (h *fakeHandler) Blocked() bool                  { return h.blocked }
func (h *fakeHandler) Flush()                         {}
func (h *fakeHandler) CoalescingDelay() time.Duration { return 0 }

func newWorld(network func(context.Context, string) (net.Conn, error)) *Environment {
	return &Environment{
		Login: &mqttconn.Login{
			Dialer: &mqttconn.Dialer{
				Addresses: []mqttconn.Address{{Host: "broker:1883"}},
				Timeout:   time.Second, Network: network,
			},
			KeepAlive: 30 * time.Second, Timeout: 10 * time.Second, Window: 16,
		},
		Random: func() uint64 { return 1 },
		Backoff: func() *backoff.Backoff { // waits half of these delays
			return backoff.New(100*time.Millisecond, 4*time.Second, func() uint64 { return 0 })
		},

		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	}
}

func newConfig() *Config {
	return &Config{
		Cluster: "holdfast", Node: "n1", SessionExpiry: time.Minute, ProbeInterval: time.Second,
	}
}

// fakeLog has a horizon.
type fakeLog struct{ horizon time.Time }

func (l *fakeLog) HorizonAge() time.Duration    { return time.Since(l.horizon) }
func (l *fakeLog) SetHorizon(age time.Duration) { l.horizon = time.Now().Add(-age) }

// newOwn returns a node's own session.
func newOwn(network func(context.Context, string) (net.Conn, error)) *Own {
	return NewOwn(newConfig(), newWorld(network), Replies{})
}

// newCluster returns the cluster's session, of a node that leads.
func newCluster(network func(context.Context, string) (net.Conn, error)) (*Cluster, *fakeHandler,
	*fakeLog,
) {
	handler, log := &fakeHandler{}, &fakeLog{time.Now().Add(-time.Hour)}
	return NewCluster(newConfig(), newWorld(network), handler, log,
		func(context.Context) error { return nil }), handler, log
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
func connected(t *testing.T, s *session) (c *connection,
	receive func(topic string, payload []byte),
) {
	near, far := net.Pipe()
	go mqtttest.Serve(far, func(*packets.ControlPacket) (packets.Packet, bool) { return nil, true })
	conn, _, err := mqttconn.Connect(t.Context(), near, &packets.Connect{},
		mqttconn.Receiver{MaxPacket: MaxPacket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		_ = far.Close()
	})
	c = &connection{
		traits: s.traits, subscribed: s.subscribed, receivedAfter: s.horizon(),
		reason: make(chan error, 1), conn: conn, acks: mqttconn.NewAcks(conn),
	}
	c.handlerCtx, c.endHandling = context.WithCancel(t.Context())
	t.Cleanup(c.endHandling)
	c.begin(time.Now(), true)
	number := uint16(0)
	return c, func(topic string, payload []byte) {
		number++
		c.received(mqttconn.Message{Publish: &mqttconn.Publish{
			Topic: topic, QoS: 1,
			PacketID: number, Payload: payload,
		}})
	}
}

// forgetfulBroker acknowledges everything, and delivers to a connection what that connection
// publishes, unless it has lost the connection's subscription.
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
				_, err := far.Write(mqttconn.AppendPublish(nil,
					&packets.Publish{
						Topic: content.Topic, QoS: 1, PacketID: 1,
						Payload: content.Payload, Properties: &packets.Properties{},
					}))
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
				return &packets.Connack{
					ReasonCode: packets.ConnackServerUnavailable,
					Properties: &packets.Properties{},
				}, true
			})
			return near, nil
		})
		r.env.Login.Dialer.Addresses = []mqttconn.Address{
			{Host: "refuses:1883"},
			{Host: "works:1883"},
		}
		stop := start(t, r.Run)
		time.Sleep(28 * time.Second)
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// If the broker loses the subscription of a session that is up, it acknowledges probes and delivers
// none. The node then connects again. It waits for a broker that hangs and acknowledges nothing:
// the session still has the requests. The cluster's session is never begun clean, and a node's own
// always is.
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
					b := &forgetfulBroker{
						forgets: test.forgets, silent: test.silent,
						connects: make(chan packets.Connect, 100),
					}
					own, requests := newOwn(b.dial), (*Cluster)(nil)
					run, clientID := own.Run, "holdfast-n1-in"
					if !isOwn {
						requests, _, _ = newCluster(b.dial)
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

// What comes before the first probe of a connection was received after the horizon in the log. What
// comes behind a probe that returned was received, and sent, after that was sent. Messages of
// others on the topic of the probes show nothing.
func TestArrivalsAreBoundedByProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handler, log := newCluster(nil)
		c, receive := connected(t, s.session)
		connect := time.Now()
		expect := func(after time.Time, when string) {
			t.Helper()
			receive(topics.Invoke, nil)
			got := handler.arrivals[len(handler.arrivals)-1]
			if !got.ReceivedAfter.Equal(after) || !got.SentAfter.Equal(later(after, connect)) ||
				!got.At.Equal(time.Now()) {
				t.Errorf("%s: received after %v, want %v; sent after %v", when, got.ReceivedAfter,
					after, got.SentAfter)
			}
		}
		horizon := log.horizon
		expect(horizon, "before the first probe")
		sent := time.Now()
		_, first := s.probes.begin(c)
		time.Sleep(time.Minute)
		_, second := s.probes.begin(c)
		expect(horizon, "while the first probe is under way")
		receive(s.probes.topic, first)
		expect(sent, "behind the first probe")
		for _, other := range []string{"forged", "2 1", string(first), "1 77"} {
			receive(s.probes.topic, []byte(other))
			expect(sent, other)
		}
		time.Sleep(time.Minute)
		receive(s.probes.topic, second)
		expect(sent.Add(time.Minute), "behind the second probe")
	})
}

// † The horizon is not when the last probe was sent that returned: a request before it may not be
// acknowledged yet. The next probe has to return that was sent when the PUBACK of that probe was
// written, on the same connection.
func TestHorizonWaitsForAcknowledgements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handler, log := newCluster(nil)
		c, receive := connected(t, s.session)
		probe := func(on *connection) (sent time.Time) {
			sent = time.Now()
			_, payload := s.probes.begin(on)
			time.Sleep(time.Second)
			receive(s.probes.topic, payload)
			return sent
		}
		before := log.horizon
		receive(topics.Invoke, nil) // its reply is stuck
		for range 300 {
			probe(c)
		}
		if !log.horizon.Equal(before) {
			t.Fatalf("the horizon moved by %v, behind a request that is not acknowledged",
				log.horizon.Sub(before))
		}
		handler.done[0]()
		elsewhere, _ := connected(t, s.session)
		probe(elsewhere) // its return says nothing of the PUBACKs on c
		if !log.horizon.Equal(before) {
			t.Errorf("the horizon moved by %v, although the probe was sent on another connection",
				log.horizon.Sub(before))
		}
		acknowledged := probe(c) // it was sent when the PUBACK of the one before was written
		if want := acknowledged.Add(-time.Second); !log.horizon.Equal(want) {
			t.Errorf("the horizon is %v from where it should be", log.horizon.Sub(want))
		}
	})
}

// † While something is unacknowledged, silence is not the broker's: a full window lets no probe
// through, and a commit that takes long must not cost the leadership.
func TestFullWindowIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handler, _ := newCluster(nil)
		c, receive := connected(t, s.session)
		s.current.Store(c)
		s.subscribed()
		receive(topics.Invoke, nil)
		time.Sleep(10 * time.Second)
		if silence := s.Silence(time.Now()); silence != 0 {
			t.Errorf("silent for %v while a request waits for its reply", silence)
		}
		handler.done[0]()
		if silence := s.Silence(time.Now()); silence != 10*time.Second {
			t.Errorf("silent for %v with nothing to wait for", silence)
		}
	})
}

// † A node that led when it connected, and does not any more, reads nothing of what the leader is
// given.
func TestNothingIsReadBeforeTheSecondConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &forgetfulBroker{connects: make(chan packets.Connect, 100)}
		handler, asked := &fakeHandler{}, 0
		s := NewCluster(newConfig(), newWorld(b.dial), handler, &fakeLog{time.Now()},
			func(context.Context) error {
				if asked++; asked == 2 {
					return errors.New("there is a later term")
				}
				return nil
			})
		stop := start(t, s.Run)
		time.Sleep(10 * time.Second)
		if !s.Up() || asked != 4 || len(b.connects) != 2 {
			t.Errorf("up %v; %d confirmations, %d connections", s.Up(), asked, len(b.connects))
		}
		stop()
	})
}

// A leadership is told when the node's own session goes to another broker.
func TestMoveToAnotherBrokerIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOwn(nil)
		told := make(chan error, 1)
		go func() { told <- s.AwaitMove(t.Context(), 0) }()
		s.status.setPlace(0)
		synctest.Wait()
		if len(told) != 0 {
			t.Fatal("told although it did not move")
		}
		s.status.setPlace(1)
		if err := <-told; !errors.Is(err, errMoved) {
			t.Error(err)
		}
	})
}

// † What still comes while a connection is being closed, or is to be closed, is not handled, and
// not acknowledged. Otherwise a GET would be executed before a SET of the same client that the
// store gave back.
func TestNothingIsHandledAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(*Cluster, *connection){
		"it is being closed": func(_ *Cluster, c *connection) { c.endHandling() },
		"a request was given back": func(s *Cluster, _ *connection) {
			s.Reconnect(errors.New("given back"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, handler, _ := newCluster(nil)
				c, receive := connected(t, s.session)
				s.current.Store(c)
				receive(topics.Invoke, nil)
				end(s, c)
				receive(topics.Invoke, nil)
				if len(handler.arrivals) != 1 || c.acks.Waiting() != 1 {
					t.Errorf("%d messages are handled, %d wait for their PUBACK",
						len(handler.arrivals), c.acks.Waiting())
				}
			})
		})
	}
}

// A session is not ready if no probe returns: too little would be known of the age of requests.
func TestSessionWithoutProbesIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newCluster(nil)
		c, receive := connected(t, s.session)
		s.subscribed()
		time.Sleep(29 * time.Second)
		if err := s.Err(); err != nil {
			t.Errorf("after 29 s: %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), "holdfast/holdfast/probe") {
			t.Errorf("after 31 s: %v", err)
		}
		_, payload := s.probes.begin(c)
		receive(s.probes.topic, payload)
		if err := s.Err(); err != nil {
			t.Errorf("when one has returned: %v", err)
		}
	})
}

// † A node whose leadership is not confirmed does not connect: it would take the cluster's session
// from the leader.
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
				s := NewCluster(newConfig(), newWorld(network), &fakeHandler{}, &fakeLog{},
					func(context.Context) error { return test.confirm })
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

// The cluster's session counts as silent from its beginning until it is connected. Err reports it
// when that takes longer than SilenceLimit.
func TestLeaderWithoutItsSessionIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewCluster(newConfig(), newWorld(nil), &fakeHandler{}, &fakeLog{}, nil)
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
