package integration

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

const (
	invokeTopic = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	wait        = 10 * time.Second
)

// peer is a plain MQTT 5 client.
type peer struct {
	t      *testing.T
	client *paho.Client
	conn   net.Conn // of client
	id     string
	topic  string // for responses
	most   byte   // highest QoS that the broker accepts
	packet int    // largest packet that the broker accepts, in bytes
	inbox  chan *paho.Publish
	ended  chan byte // the reason of the broker's DISCONNECT, 0 for a lost connection
}

// counter makes correlation data that no other request has: a client that reconnects must not use
// the same once more.
var counter atomic.Uint64

// answered holds the correlation data of requests whose replies have come. On a busy machine the
// leader may change, and then a reply may come once more: receive skips it.
var answered sync.Map

// users maps each client id to the name of the test that uses it.
var users sync.Map

// connect connects a client that receives what comes to its response topic, and its notifications
// if subscribe says so.
func connect(t *testing.T, target *target, id string, subscribe bool) *peer {
	t.Helper()
	user := os.Getenv("HOLDFAST_TEST_USERNAME") // some brokers refuse clients without a login
	p, err := login(t, target.address, &paho.Connect{
		ClientID: id, CleanStart: true, KeepAlive: 30, Username: user, UsernameFlag: user != "",
		Password: []byte(user), PasswordFlag: user != "",
	})
	if err != nil {
		t.Fatal(err)
	}
	p.subscribe(p.topic)
	if subscribe {
		p.subscribe(notificationsOf(id))
	}
	return p
}

// notificationsOf returns a filter for the notifications of a client.
func notificationsOf(id string) string {
	return "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/" + fmt.Sprintf("%X", id) +
		"/command/notify/#"
}

// goResponseOf returns the response topic of the protocol's Go library.
func goResponseOf(id string) string {
	return fmt.Sprintf("clients/%X/", id) + invokeTopic + "/response"
}

// login connects a client that has not subscribed to anything.
func login(t *testing.T, address string, connect *paho.Connect) (*peer, error) {
	t.Helper()
	id := connect.ClientID
	// RabbitMQ 4.0 loses the subscriptions of about one in 5,000 clients that connect anew right
	// after their DISCONNECT.
	if user, used := users.LoadOrStore(id, t.Name()); os.Getenv("HOLDFAST_TEST_BROKER") != "" &&
		used && user != t.Name() {
		return nil, fmt.Errorf(
			"client id %q is used by %s, too: behind an external broker each test needs ids of its own", id, user)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	p := &peer{
		t: t, conn: conn, id: id, topic: "clients/" + id +
			"/services/statestore/_any_/command/invoke/response",
		inbox: make(chan *paho.Publish, 10_000), ended: make(chan byte, 10),
	}
	p.client = paho.NewClient(paho.ClientConfig{
		Conn: packets.NewThreadSafeConn(conn),
		OnPublishReceived: []func(paho.PublishReceived) (bool,
			error){func(r paho.PublishReceived) (bool, error) {
			p.inbox <- r.Packet
			return true, nil
		}},
		OnServerDisconnect: func(d *paho.Disconnect) { p.ended <- d.ReasonCode },
		OnClientError:      func(error) { p.ended <- 0 },
	})
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	connack, err := p.client.Connect(ctx, connect)
	if err != nil {
		return nil, err
	}
	p.most, p.packet = 2, math.MaxInt
	if packet := connack.Properties.MaximumPacketSize; packet != nil {
		p.packet = int(*packet)
	}
	if most := connack.Properties.MaximumQoS; most != nil {
		p.most = *most
	}
	t.Cleanup(func() { _ = p.client.Disconnect(&paho.Disconnect{}) })
	return p, nil
}

func (p *peer) subscribe(topic string) {
	p.t.Helper()
	if err := p.trySubscribe(topic); err != nil {
		p.t.Fatal(err)
	}
}

// trySubscribe returns an error when the broker refuses.
func (p *peer) trySubscribe(topic string) error {
	ctx, cancel := context.WithTimeout(p.t.Context(), wait)
	defer cancel()
	_, err := p.client.Subscribe(ctx,
		&paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: 1}}})
	return err
}

// end waits until the broker has ended the connection, and returns the reason that it gave.
func (p *peer) end() byte {
	p.t.Helper()
	select {
	case reason := <-p.ended:
		return reason
	case <-time.After(wait):
		p.t.Fatal("the connection does not end")
		return 0
	}
}

// request is what a client publishes.
type request struct {
	payload     string
	properties  []string // user properties: key, value, key, value …
	correlation string   // default: a new one of 16 bytes
	noID        bool     // no correlation data
	topic       string   // response topic; default: the client's own
	noTopic     bool
	qos         byte // default 1
	qos0        bool
	retain      bool
	expiry      uint32 // seconds; 0 is none
	extra       func(*paho.Publish)
}

// array writes a request as RESP.
func array(arguments ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(arguments))
	for _, argument := range arguments {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(argument), argument)
	}
	return b.String()
}

// now is a timestamp for SET.
func now() string { return fmt.Sprintf("%015d:%05d:tester", time.Now().UnixMilli(), 0) }

func (p *peer) publish(r request) string {
	p.t.Helper()
	correlation := r.correlation
	if correlation == "" && !r.noID {
		correlation = fmt.Sprintf("%-8.8s%08d", p.id, counter.Add(1))
	}
	publish := &paho.Publish{
		Topic: invokeTopic, QoS: 1, Payload: []byte(r.payload),
		Retain: r.retain, Properties: &paho.PublishProperties{},
	}
	publish.Properties.CorrelationData = []byte(correlation)
	if r.qos != 0 {
		publish.QoS = r.qos
	}
	if r.qos0 {
		publish.QoS = 0
	}
	if !r.noTopic {
		publish.Properties.ResponseTopic = p.topic
		if r.topic != "" {
			publish.Properties.ResponseTopic = r.topic
		}
	}
	if r.expiry > 0 {
		publish.Properties.MessageExpiry = &r.expiry
	}
	for i := 0; i+1 < len(r.properties); i += 2 {
		publish.Properties.User.Add(r.properties[i], r.properties[i+1])
	}
	if r.extra != nil {
		r.extra(publish)
	}
	answered.Delete(correlation)
	ctx, cancel := context.WithTimeout(p.t.Context(), wait)
	defer cancel()
	if _, err := p.client.Publish(ctx, publish); err != nil {
		p.t.Logf("publish: %v", err) // if the broker has refused it, the caller misses the reply
	}
	return correlation
}

// receive returns the next message, but skips a reply that has come before.
func (p *peer) receive() *paho.Publish {
	p.t.Helper()
	for {
		select {
		case m := <-p.inbox:
			correlation := string(m.Properties.CorrelationData)
			if correlation == "" {
				return m
			}
			if _, again := answered.LoadOrStore(correlation, true); !again {
				return m
			}
		case <-time.After(wait):
			p.t.Fatal("nothing came")
			return nil
		}
	}
}

// call publishes a request and returns its reply. Whatever else comes first is an error.
func (p *peer) call(r request) *paho.Publish {
	p.t.Helper()
	correlation := p.publish(r)
	m := p.receive()
	if string(m.Properties.CorrelationData) != correlation {
		p.t.Fatalf("%q came instead of the reply to %q", m.Payload, r.payload)
	}
	return m
}

// silent publishes a request that must not be answered. That nothing comes is known when the reply
// to a later request comes first: what one client receives is in order.
func (p *peer) silent(r request) {
	p.t.Helper()
	p.publish(r)
	reply := p.call(request{payload: array("GET", "nothing-here")})
	if string(reply.Payload) != "$-1\r\n" {
		p.t.Fatalf("%q", reply.Payload)
	}
}

// property returns a user property, and how often it occurs.
func property(m *paho.Publish, key string) (string, int) {
	value, count := "", 0
	for _, user := range m.Properties.User {
		if user.Key == key {
			value = user.Value
			count++
		}
	}
	return value, count
}

func timestamp(m *paho.Publish) string {
	value, _ := property(m, "__ts")
	return value
}
