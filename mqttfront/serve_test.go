package mqttfront

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn/mqtttest"
	"holdfast/internal/testwait"
)

// fakeBroker accepts connections and keeps what is published on them.
type fakeBroker struct {
	mu        sync.Mutex
	connects  int
	published []publication
	open      int
}

// publication is a message, and the client id of the connection that it came on.
type publication struct{ connection, topic, correlation, payload string }

func (b *fakeBroker) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	go b.serve(far)
	return near, nil
}

func (b *fakeBroker) count(add func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add()
}

func (b *fakeBroker) serve(conn net.Conn) {
	defer b.count(func() { b.open-- })
	b.count(func() { b.open++ })
	client := ""
	mqtttest.Serve(conn, func(packet *packets.ControlPacket) (packets.Packet, bool) {
		switch content := packet.Content.(type) {
		case *packets.Connect:
			client = content.ClientID
			b.count(func() { b.connects++ })
		case *packets.Publish:
			message := publication{client, content.Topic, string(content.Properties.CorrelationData), string(content.Payload)}
			b.count(func() { b.published = append(b.published, message) })
		}
		return nil, true
	})
}

// confirmations is a fakeStore whose Confirm returns given answers.
type confirmations struct {
	*fakeStore
	mu      sync.Mutex
	answers []error // results of Confirm, in order; the last one is repeated
	asked   int     // number of calls of Confirm
}

func (c *confirmations) Confirm(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	answer := c.answers[0]
	if len(c.answers) > 1 {
		c.answers = c.answers[1:]
	}
	return answer
}

// † Leadership is confirmed before CONNECT and again after CONNACK, and only then is anything published: a leader that was
// paused in between would take the sessions of its successor over, and publish old notifications again.
func TestSessionTakeoverIsConfirmedTwice(t *testing.T) {
	lost := errors.New("no leader any more")
	for name, test := range map[string]struct {
		answers  []error
		connects bool
	}{
		"lost before CONNECT": {[]error{lost}, false},
		"lost after CONNACK":  {[]error{nil, lost}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newTestFront(t)
			broker := &fakeBroker{}
			s.dialer.Network = broker.dial
			store := &confirmations{fakeStore: s, answers: test.answers}
			f.SetStore(store)
			arrive(f, "*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n", strings.Repeat("a", 16))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- f.Serve(ctx, 1) }()
			testwait.Within(t, 10*time.Second, "it is asked more than three times", func() bool {
				store.mu.Lock()
				defer store.mu.Unlock()
				return store.asked > 3
			})
			cancel()
			<-ended
			broker.mu.Lock()
			if (broker.connects > 0) != test.connects || len(broker.published) > 0 {
				t.Errorf("%d connections, messages %q", broker.connects, broker.published)
			}
			broker.mu.Unlock()
			if s.count() != 0 {
				t.Error("something was proposed")
			}
		})
	}
}

// † A new leader whose leadership is confirmed answers the requests that it held, and those that only another node held. It publishes the replies on the
// publishing connections that it took over.
func TestNewLeaderAnswersHeldRequests(t *testing.T) {
	f, s := newTestFront(t)
	f.SetStore(s)
	broker := &fakeBroker{}
	s.dialer.Network = broker.dial
	arrive(f, "*1\r\n$4\r\nNOPE\r\n", strings.Repeat("a", 16))
	other, otherStore := newTestFront(t)
	other.SetStore(otherStore)
	arrive(other, "*1\r\n$4\r\nNOPE\r\n", strings.Repeat("b", 16))
	page, _ := other.Held(0, 0)
	s.held = map[string][][]byte{"n2": {page}}
	f.barrier.Advance(time.Now().Add(time.Hour)) // nothing is on its way any more
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(ctx, 1) }()
	testwait.Within(t, 10*time.Second, "two answers are published", func() bool {
		broker.mu.Lock()
		defer broker.mu.Unlock()
		return len(broker.published) >= 2
	})
	cancel()
	<-ended
	broker.mu.Lock()
	defer broker.mu.Unlock()
	slices.SortFunc(broker.published, func(a, b publication) int { return strings.Compare(a.correlation, b.correlation) })
	if len(broker.published) != 2 {
		t.Fatalf("the answers are %q, want one of each request", broker.published)
	}
	for i, correlation := range []string{strings.Repeat("a", 16), strings.Repeat("b", 16)} {
		got := broker.published[i]
		if !strings.HasPrefix(got.connection, "holdfast-out-") || got.topic != "clients/c/r" || got.correlation != correlation || !strings.HasPrefix(got.payload, "-ERR") {
			t.Errorf("answer %d is %q, want an error for %s on a publishing connection", i, got, correlation)
		}
	}
	if s.count() != 0 {
		t.Error("an invalid command was proposed")
	}
}
