package mqttfront

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
	"holdfast/internal/mqttconn/mqtttest"
	"holdfast/internal/testwait"
	"holdfast/internal/topics"
)

// fakeBroker accepts connections and keeps what is published on them.
type fakeBroker struct {
	// the broker sends it to the client that subscribes to requests; nil for none
	request *packets.Publish

	mu        sync.Mutex
	connects  int
	clients   []string // the client ids of the connections that had a CONNECT, in order
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
			b.count(func() {
				b.connects++
				b.clients = append(b.clients, client)
			})
		case *packets.Subscribe:
			if b.request != nil && strings.HasSuffix(client, "-ingest") {
				if _, err := conn.Write(mqttconn.AppendPublish(nil, b.request)); err != nil {
					return nil, false
				}
			}
		case *packets.Publish:
			message := publication{
				client, content.Topic,
				string(content.Properties.CorrelationData), string(content.Payload),
			}
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

// † Leadership is confirmed before CONNECT and again after CONNACK, and only then is anything
// published: a leader that was paused in between would take the sessions of its successor over, and
// publish old notifications again.
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

// † A new leader takes over the publishing connections before the cluster's session, so that no
// earlier leader publishes any more, and answers what that session brings on these connections.
func TestLeaderPublishesBeforeItReceives(t *testing.T) {
	f, s := newTestFront(t)
	f.SetStore(s)
	broker := &fakeBroker{request: &packets.Publish{
		QoS: 1, PacketID: 1, Topic: topics.Invoke,
		Payload: []byte("*1\r\n$4\r\nNOPE\r\n"), Properties: &packets.Properties{
			ResponseTopic: "clients/c/r", CorrelationData: []byte(strings.Repeat("a", 16)),
		},
	}}
	s.dialer.Network = broker.dial
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(ctx, 1) }()
	answers := func() (answers []publication) {
		broker.mu.Lock()
		defer broker.mu.Unlock()
		for _, p := range broker.published {
			if !strings.HasSuffix(p.topic, "/probe") {
				answers = append(answers, p)
			}
		}
		return answers
	}
	testwait.Within(t, 10*time.Second, "an answer is published",
		func() bool { return len(answers()) > 0 })
	cancel()
	<-ended
	broker.mu.Lock()
	if last := len(broker.clients) - 1; last != 2 || broker.clients[last] != "holdfast-ingest" {
		t.Errorf("connections in the order %v, want that of the requests last", broker.clients)
	}
	broker.mu.Unlock()
	got := answers()[0]
	if !strings.HasPrefix(got.connection, "holdfast-out-") || got.topic != "clients/c/r" ||
		got.correlation != strings.Repeat("a", 16) || !strings.HasPrefix(got.payload, "-ERR") {
		t.Errorf("the answer is %q, want an error on a publishing connection", got)
	}
	if s.count() != 0 {
		t.Error("an invalid command was proposed")
	}
}
