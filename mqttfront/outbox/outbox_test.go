package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
	"holdfast/internal/mqttconn/mqtttest"
	"holdfast/mqttfront/wire"
)

// fakeBroker accepts connections, and acknowledges what is published on them.
type fakeBroker struct {
	poison  string // the broker ends the connection at a message on this topic
	refused string // the broker refuses messages on this topic: its PUBACK has reason code 0x87
	// it ends the connection at the message behind a refused one, as Mosquitto 2.0 with
	// max_queued_messages 0
	ends bool

	mu        sync.Mutex
	clients   []string // client ids, in the order of their connections
	published []string // topics of the accepted messages
}

func (b *fakeBroker) connect(ctx context.Context, clientID string) (*mqttconn.Publisher, error) {
	near, far := net.Pipe()
	b.mu.Lock()
	b.clients = append(b.clients, clientID)
	b.mu.Unlock()
	go b.serve(far)
	return mqttconn.NewPublisher(ctx, near, &packets.Connect{ClientID: clientID, KeepAlive: 30}, 16)
}

func (b *fakeBroker) serve(conn net.Conn) {
	refused := false
	mqtttest.Serve(conn, func(packet *packets.ControlPacket) (packets.Packet, bool) {
		if publish, ok := packet.Content.(*packets.Publish); ok {
			if publish.Topic == b.poison {
				return nil, false
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if refused && b.ends {
				return nil, false
			}
			if publish.Topic == b.refused {
				refused = true
				return &packets.Puback{
					PacketID: publish.PacketID, ReasonCode: 0x87,
					Properties: &packets.Properties{},
				}, true
			}
			b.published = append(b.published, publish.Topic)
		}
		return nil, true
	})
}

// topics returns what was published.
func (b *fakeBroker) topics() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.published)
}

// recorder is a Handler that records the replies that are published or whose clients are to be
// kicked.
type recorder struct {
	mu                sync.Mutex
	published, kicked []string // response topics
}

func (r *recorder) Published(o *Output) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published = append(r.published, o.Request.ResponseTopic)
}
func (r *recorder) NoSubscriber(*Output) {}
func (r *recorder) Kick(request *wire.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kicked = append(r.kicked, request.ResponseTopic)
}

func newTestOutbox(broker *fakeBroker, confirm func(context.Context) error) *Outbox {
	return New(Config{
		Cluster: "holdfast", Connections: 2, MaxNotifications: 10,
		MaxNotificationBytes: 1000,
	}, Environment{
		Connect: broker.connect, Confirm: confirm, TrustedIdentity: func() bool { return false },
		SessionUpSince: func(time.Time) bool { return true },
		Backoff: func() *backoff.Backoff { // waits half of these delays
			return backoff.New(2*time.Second, 2*time.Minute, func() uint64 { return 0 })
		},

		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
}

func confirmed(context.Context) error { return nil }

// A reply on which the broker ends connections is given up, and its client is kicked. Replies to
// other clients are delivered. Further replies to the kicked client are given up at once until its
// penalty ends.
func TestOutboxGivesUpWhatTheBrokerDoesNotTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, handler := &fakeBroker{poison: "poison"}, &recorder{}
		o := newTestOutbox(broker, confirmed)
		c, err := o.Connect(t.Context(), handler)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, topic := range []string{"poison", "innocent"} {
			if dropped := c.Send("one connection", reply("", topic)); dropped != nil {
				t.Errorf("%s is given up at once", topic)
			}
		}
		time.Sleep(time.Minute / 2)
		handler.mu.Lock()
		if len(handler.kicked) != 1 || handler.kicked[0] != "poison" ||
			len(handler.published) != 2 {
			t.Errorf("kicked %v, published %v", handler.kicked, handler.published)
		}
		handler.mu.Unlock()
		if dropped := c.Send("any", reply("", "poison")); len(dropped) != 1 {
			t.Error("a reply to a client with a penalty is queued")
		}
		time.Sleep(penaltyTime)
		if dropped := c.Send("any", reply("", "poison")); dropped != nil {
			t.Error("the penalty does not end")
		}
	})
}

// † Where a broker ends the connection because its rules refuse a reply, the client of that reply
// gets the penalty, and nobody whose reply was in flight behind it.
func TestRefusedReplyIsBlamedForTheEndOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, handler := &fakeBroker{refused: "plant/x", ends: true}, &recorder{}
		o := newTestOutbox(broker, confirmed)
		c, err := o.Connect(t.Context(), handler)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 3 {
			for _, topic := range []string{"plant/x", "innocent"} {
				c.Send("one connection", reply("", topic))
			}
			time.Sleep(20 * time.Second)
		}
		handler.mu.Lock()
		defer handler.mu.Unlock()
		if len(handler.kicked) != 1 || handler.kicked[0] != "plant/x" {
			t.Errorf("kicked %v", handler.kicked)
		}
		if got := broker.topics(); len(got) != 3 {
			t.Errorf("published %v, want three replies to the innocent client", got)
		}
	})
}

// A user with many client ids has a penalty when several of them have one, where the broker vouches
// for users. One client of a user that many share is penalized alone.
func TestUserHasAPenaltyWhenSeveralClientsDo(t *testing.T) {
	request := func(user, id string) *wire.Request {
		r := &wire.Request{ResponseTopic: "clients/" + id + "/r"}
		r.Command.Principal.Username, r.Command.Principal.ClientID = user, id
		return r
	}
	now := time.Now()
	p := penalties{trusted: func() bool { return true }}
	for i := 1; i <= clientsOfUser; i++ {
		if p.has(request("eve", "eve-9"), now) {
			t.Errorf("the user has a penalty after %d clients", i-1)
		}
		p.add(request("eve", fmt.Sprint("eve-", i)), now)
		p.add(request("eve2", "the same"), now)
	}
	for _, c := range []struct {
		user, id string
		want     bool
	}{
		{"eve", "eve-9", true},
		{"bob", "bob-1", false},
		{"eve2", "the same", true},
		{"eve2", "another", false},
		{"", "eve-8", false},
	} {
		if got := p.has(request(c.user, c.id), now); got != c.want {
			t.Errorf("user %q, client %q: %t", c.user, c.id, got)
		}
	}
	if later := now.Add(penaltyTime); p.has(request("eve", "eve-1"), later) {
		t.Error("the penalty does not end")
	}
}

// A reply that the broker refuses is counted: its client gets no answer, and an operator has to see
// why.
func TestRefusedRepliesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, registry := newTestOutbox(&fakeBroker{refused: "denied"}, confirmed),
			prometheus.NewRegistry()
		o.env.Metrics = NewMetrics(registry)
		c, err := o.Connect(t.Context(), &recorder{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, topic := range []string{"denied", "allowed", "denied"} {
			c.Send("one connection", reply("", topic))
		}
		time.Sleep(time.Minute)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counted := -1.0
		for _, family := range families {
			if family.GetName() == "holdfast_replies_refused_total" {
				counted = family.GetMetric()[0].GetCounter().GetValue()
			}
		}
		if counted != 2 {
			t.Errorf("%v refused replies are counted", counted)
		}
	})
}

// All nodes connect under the same client ids.
func TestTakeOverUsesTheClientIDsOfTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &fakeBroker{}
		o := newTestOutbox(broker, confirmed)
		c, err := o.Connect(t.Context(), &recorder{})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if len(broker.clients) != 2 || broker.clients[0] != "holdfast-out-0" ||
			broker.clients[1] != "holdfast-out-1" {
			t.Errorf("%v", broker.clients)
		}
	})
}

// Down counts the time without a connection from the beginning of a leadership. It is 0 after the
// leadership.
func TestDownCountsOnlyWhileLeading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("no leader")
		o := newTestOutbox(&fakeBroker{}, func(context.Context) error { return refused })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := o.Connect(ctx, &recorder{})
			ended <- err
		}()
		time.Sleep(10 * time.Second)
		if down := o.Down(time.Now()); down != 10*time.Second {
			t.Errorf("down for %v, want 10s", down)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if down := o.Down(time.Now()); down != 0 {
			t.Errorf("down for %v after the leadership", down)
		}
	})
}

// The broker is blamed for the end of a connection only if the node's own session stayed up, and no
// other cause is known. Otherwise no message on the connection is at fault.
func TestBrokerIsBlamedOnlyWithoutAnotherCause(t *testing.T) {
	for name, test := range map[string]struct {
		up   bool
		by   error
		want bool
	}{
		"the broker":                {true, io.EOF, true},
		"the broker, with a reason": {true, &mqttconn.ReasonCodeError{Reason: 0x90}, true},
		"another client of the same id": {
			true,
			&mqttconn.ReasonCodeError{Reason: mqttconn.ReasonSessionTakenOver}, false,
		},
		"the network":      {true, mqttconn.ErrSilent, false},
		"this side":        {true, mqttconn.ErrClosed, false},
		"the broker's end": {false, io.EOF, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := connection{env: &Environment{SessionUpSince: func(
				time.Time,
			) bool {
				return test.up
			}}}
			if got := c.brokerEnded(loss{connectedAt: time.Now(), err: test.by}); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

func TestPenaltiesAreBounded(t *testing.T) {
	p := penalties{trusted: func() bool { return false }}
	now := time.Now()
	for i := range 2 * maxPenalties {
		p.add(&wire.Request{ResponseTopic: string(rune(i))}, now)
	}
	if len(p.until) != maxPenalties {
		t.Errorf("%d", len(p.until))
	}
	if p.add(&wire.Request{ResponseTopic: "later"}, now.Add(2*penaltyTime)); len(p.until) != 1 {
		t.Errorf("%d after all have ended", len(p.until))
	}
}

// Frequent losses count as a takeover loop (two clients take one client id from each other), which
// is logged once. Rare losses do not count.
func TestTakeoverLoopIsDetectedOnce(t *testing.T) {
	for name, test := range map[string]struct {
		interval time.Duration
		want     int
	}{"each second": {time.Second, 1}, "each minute": {time.Minute, 0}} {
		t.Run(name, func(t *testing.T) {
			var l takeoverLoop
			now, detected := time.Now(), 0
			for range 20 {
				if now = now.Add(test.interval); l.recordLoss(now) {
					detected++
				}
			}
			if detected != test.want || l.detectedRecently(now) != (test.want > 0) {
				t.Errorf("detected %d times", detected)
			}
		})
	}
}

// The watermark moves to an index when all notifications of that index and of lower ones are
// delivered. Index 0 is none.
func TestWatermarkCoversWhatIsDeliveredWithoutAGap(t *testing.T) {
	var w Watermark
	for _, index := range []uint64{10, 11, 11, 12, 10} {
		w.Add(index)
	}
	for _, step := range []struct {
		done  uint64
		moved bool
		index uint64
	}{
		{11, false, 0},
		{10, false, 0},
		{0, false, 0},
		{10, true, 10},
		{11, true, 11},
		{12, true, 12},
	} {
		if moved := w.Done(step.done); moved != step.moved || w.Index() != step.index {
			t.Errorf("after %d: moved %v to %d, want %v to %d", step.done, moved, w.Index(),
				step.moved, step.index)
		}
	}
}

// The TTL of a notification runs while it waits in the queue.
func TestNotificationExpiresInTheQueue(t *testing.T) {
	now := time.Now()
	o := &Output{
		Event: &fsm.Event{Key: "k"}, Receiver: &fsm.Receiver{ClientID: "c"}, Queued: now,
		TTL: time.Minute,
	}
	if o.Encode(now.Add(59*time.Second)) == nil || o.Encode(now.Add(time.Minute)) != nil {
		t.Error("delivered too late, or not at all")
	}
}
