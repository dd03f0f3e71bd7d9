package mirror

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
)

// retainer is a broker that retains messages, for connections in memory.
type retainer struct {
	rate int // bytes per second that the broker reads from a connection; 0 is no limit
	// buffers says that the network accepts every write at once, and delivers it at rate.
	buffers bool
	// breaks reports whether the broker ends a comparison's connection after it has sent the
	// retained messages, before the comparison ends. May be nil.
	breaks func() bool
	// hides reports whether the broker does not send the retained message of a topic to a
	// subscriber. May be nil.
	hides func(topic string) bool

	mu       sync.Mutex
	retained map[string]*packets.Publish
}

// dial returns the client's end of a new connection.
func (r *retainer) dial(context.Context, string) (net.Conn, error) {
	here, there := net.Pipe()
	if r.buffers {
		here = &buffering{
			Conn: here, pieces: make(chan []byte, 10_000),
			closed: make(chan struct{}),
		}
	}
	go r.serve(there)
	return here, nil
}

// serve serves a connection until it ends.
func (r *retainer) serve(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(&throttled{conn, r.rate})
	for {
		packet, err := mqttconn.ReadPacket(reader, 16<<20)
		if err != nil {
			return
		}
		for _, answer := range r.answers(packet) {
			if _, err := answer.WriteTo(conn); err != nil {
				return
			}
		}
		if _, is := packet.Content.(*packets.Subscribe); is && r.breaks != nil && r.breaks() {
			return
		}
	}
}

// answers returns what the broker sends after a packet.
func (r *retainer) answers(packet *packets.ControlPacket) (answers []io.WriterTo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch content := packet.Content.(type) {
	case *packets.Connect:
		answers = append(answers, &packets.Connack{Properties: &packets.Properties{}})
	case *packets.Pingreq:
		answers = append(answers, &packets.Pingresp{})
	case *packets.Subscribe:
		answers = append(answers,
			&packets.Suback{
				PacketID:   content.PacketID,
				Reasons:    make([]byte, len(content.Subscriptions)),
				Properties: &packets.Properties{},
			})
		for _, subscription := range content.Subscriptions {
			for topic, message := range r.retained {
				if strings.HasPrefix(topic, strings.TrimSuffix(subscription.Topic, "#")) &&
					(r.hides == nil || !r.hides(topic)) {
					answers = append(answers,
						&packets.Publish{
							Topic: topic, Retain: true, Payload: message.Payload,
							Properties: &packets.Properties{User: message.Properties.User},
						})
				}
			}
		}
	case *packets.Publish:
		if content.Retain {
			if r.retained[content.Topic] = content; len(content.Payload) == 0 {
				delete(r.retained, content.Topic)
			}
		}
		if content.QoS == 1 {
			answers = append(answers,
				&packets.Puback{PacketID: content.PacketID, Properties: &packets.Properties{}})
		} else {
			answers = append(answers,
				&packets.Publish{
					Topic: content.Topic, Payload: content.Payload,
					Properties: &packets.Properties{},
				})
		}
	}
	return answers
}

// retains reports whether the broker has a retained message on a topic.
func (r *retainer) retains(topic string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, is := r.retained[topic]
	return is
}

// throttled is a connection from which at most rate bytes per second are read. 0 is no limit.
type throttled struct {
	net.Conn
	rate int
}

func (c *throttled) Read(b []byte) (int, error) {
	if c.rate == 0 {
		return c.Conn.Read(b)
	}
	n, err := c.Conn.Read(b[:min(len(b), c.rate/100)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(c.rate))
	return n, err
}

// buffering is a connection whose writes do not wait.
type buffering struct {
	net.Conn
	pieces chan []byte
	begin  sync.Once
	closed chan struct{}
	end    sync.Once
}

func (c *buffering) Close() error {
	c.end.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *buffering) Write(b []byte) (int, error) {
	c.begin.Do(func() {
		go func() {
			for {
				select {
				case <-c.closed:
					return
				case piece := <-c.pieces:
					_, _ = c.Conn.Write(piece) // an error means that it is closed
				}
			}
		}()
	})
	c.pieces <- bytes.Clone(b)
	return len(b), nil
}

// run runs a Mirror of a state on a broker until the test ends. It must be called in a bubble of
// synctest.
func (r *retainer) run(t *testing.T, state *fsm.Machine) *Mirror {
	t.Helper()
	r.retained = make(map[string]*packets.Publish)
	m := New(Config{Cluster: "c", MaxPacket: 8 << 20}, Environment{
		Login: &mqttconn.Login{
			KeepAlive: 30 * time.Second, Timeout: 10 * time.Second, Window: 100,
			Dialer: &mqttconn.Dialer{
				Addresses: []mqttconn.Address{{}}, Timeout: 10 * time.Second,
				Network: r.dial,
			},
		},
		Confirm: func(context.Context) error { return nil },
		View:    func(f func(*fsm.Machine)) { f(state) },
		Backoff: func() *backoff.Backoff { // waits half of these delays
			return backoff.New(100*time.Millisecond, 4*time.Second, func() uint64 { return 0 })
		},

		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		time.Sleep(5 * time.Minute) // until the goroutines of the broker have ended
	})
	return m
}

// The corrections of a pass count even if its connection ends before the pass does.
func TestCorrectionsOfAFailedPassCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := make(chan struct{}, 1)
		broker := &retainer{breaks: func() bool {
			select {
			case <-broken:
				return true
			default:
				return false
			}
		}}
		m := broker.run(t, stateWith(t))
		time.Sleep(time.Minute)
		broker.mu.Lock()
		broker.retained["t/forged"] = &packets.Publish{
			Payload:    []byte("x"),
			Properties: &packets.Properties{},
		}
		broker.mu.Unlock()
		broken <- struct{}{}
		m.Resync()
		time.Sleep(time.Minute)
		if s := m.Status(); !s.InSync || s.Stale != 1 || len(broken) != 0 ||
			broker.retains("t/forged") {
			t.Errorf("%+v", s)
		}
	})
}

// The stale messages that a comparison corrects count even if it is blind: the broker does not send
// all that it retains.
func TestCorrectionsOfABlindComparisonCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hides := atomic.Bool{}
		broker := &retainer{hides: func(topic string) bool {
			return hides.Load() &&
				topic != "t/forged"
		}}
		m := broker.run(t, stateWith(t, "a"))
		time.Sleep(time.Minute)
		broker.mu.Lock()
		broker.retained["t/forged"] = &packets.Publish{
			Payload:    []byte("x"),
			Properties: &packets.Properties{},
		}
		broker.mu.Unlock()
		hides.Store(true)
		m.Resync()
		time.Sleep(time.Minute)
		if s := m.Status(); !s.Blind || s.Stale != 1 || s.Missing != 0 ||
			broker.retains("t/forged") {
			t.Errorf("%+v", s)
		}
	})
}

// The lag grows until a comparison succeeds, however many begin and fail.
func TestLagGrowsWhileComparisonsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := atomic.Bool{}
		broker := &retainer{breaks: fails.Load}
		m := broker.run(t, stateWith(t, "a"))
		const while = 10 * time.Minute
		time.Sleep(while)
		if s := m.Status(); s.Lag > time.Second || !s.InSync {
			t.Fatalf("%+v", s)
		}
		fails.Store(true)
		m.Resync()
		time.Sleep(while)
		if s := m.Status(); s.Lag < while-time.Second || s.InSync || s.Fault == "" {
			t.Errorf("comparisons have failed for %v: %+v", while, s)
		}
		fails.Store(false)
		time.Sleep(time.Minute)
		if s := m.Status(); s.Lag > time.Second || !s.InSync {
			t.Errorf("compared again: %+v", s)
		}
	})
}

// Keys whose topic is invalid are counted, also those that were set before the Mirror ran.
func TestKeysWithoutATopicAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := (&retainer{}).run(t, stateWith(t, "a", "b+", "c#"))
		time.Sleep(time.Minute)
		if s := m.Status(); s.Keys != 3 || s.Unshown != 2 || !s.InSync {
			t.Errorf("%+v", s)
		}
	})
}

// A value whose transfer takes longer than the keep-alive time is published if the connection
// accepts it slowly. If a buffer accepts it at once, the keep-alive ends the connection. The value
// is then not published, but other topics are.
func TestLargeValueOnASlowConnectionIsPublishedIfItIsAccepted(t *testing.T) {
	t.Run("the connection takes bytes", func(t *testing.T) { checkLargeValue(t, false) })
	t.Run("a buffer takes them", func(t *testing.T) { checkLargeValue(t, true) })
}

func checkLargeValue(t *testing.T, buffers bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		state := stateWith(t, "a", "z")
		set(t, state, "large", strings.Repeat("x", 4<<20))
		broker := &retainer{rate: minRate, buffers: buffers}
		m := broker.run(t, state)
		time.Sleep(10 * time.Minute)
		s := m.Status()
		if !broker.retains("t/a") || !broker.retains("t/z") {
			t.Errorf("a is shown: %v, z: %v; %+v", broker.retains("t/a"), broker.retains("t/z"), s)
		}
		if shown := broker.retains("t/large"); shown == buffers || s.InSync == buffers {
			t.Errorf("the large value is shown: %v; %+v", shown, s)
		}
	})
}

// Before any mirror is in force no topic is owned. After that, a topic is owned if it begins with a
// mirror's prefix.
func TestMirrorOwnsTheTopicsBelowItsPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := New(Config{}, Environment{})
		if before.Owns("t/x") {
			t.Error("a topic is owned without a mirror")
		}
		m := (&retainer{}).run(t, stateWith(t))
		time.Sleep(time.Minute)
		if !m.Owns("t/x") || m.Owns("u/t/x") {
			t.Error("not the topics below t/ are owned")
		}
	})
}
