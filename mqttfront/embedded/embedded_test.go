package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"go.uber.org/goleak"

	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startBroker(t *testing.T) *Broker {
	t.Helper()
	b, err := Start(Config{
		Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler),
		Wall:    func() int64 { return time.Now().UnixMilli() },
		Cluster: "holdfast", NodeUsername: "node",
		NodePassword: func() []byte { return []byte("secret") },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

const patience = 10 * time.Second

// connect connects a client that receives what it subscribes to.
func connect(t *testing.T, b *Broker, options *packets.Connect,
	received func(*mqttconn.Publish),
) (*mqttconn.Conn, error) {
	t.Helper()
	network, err := net.Dial("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if options.KeepAlive == 0 {
		options.KeepAlive = 30
	}
	var acks *mqttconn.Acks
	conn, _, err := mqttconn.Connect(ctx, network, options,
		mqttconn.Receiver{MaxPacket: 1 << 20, Publish: func(p mqttconn.Message) {
			if received != nil {
				received(p.Publish)
			}
			if p.QoS == 1 {
				// an error means that the connection has ended
				_ = acks.Done(acks.Arrived(p.PacketID))
			}
		}})
	if err != nil {
		return nil, err
	}
	acks = mqttconn.NewAcks(conn)
	conn.Start()
	t.Cleanup(conn.Close)
	return conn, nil
}

func publisher(t *testing.T, b *Broker, id string) *mqttconn.Publisher {
	t.Helper()
	network, err := net.Dial("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := mqttconn.NewPublisher(ctx, network,
		&packets.Connect{ClientID: id, CleanStart: true, KeepAlive: 30}, 1024)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Hundreds of QoS 1 requests under way at once do not make mochi (the embedded broker's MQTT
// server) hang. `make soak` runs the test for 30 s.
func TestManyRequestsAtOnceDoNotHangTheBroker(t *testing.T) {
	duration := 3 * time.Second
	if text := os.Getenv("HOLDFAST_SOAK"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	const outstanding = 256
	b := startBroker(t)
	answers := publisher(t, b, "answers")
	responder, err := connect(t, b, &packets.Connect{ClientID: "responder", CleanStart: true},
		func(p *mqttconn.Publish) {
			_ = answers.Publish(t.Context(),
				&packets.Publish{Topic: "response", Payload: p.Payload},
				func(byte, error) {})
			answers.Flush()
		})
	if err != nil {
		t.Fatal(err)
	}
	places := make(chan struct{}, outstanding)
	var done atomic.Int64
	requester, err := connect(t, b, &packets.Connect{ClientID: "requester", CleanStart: true},
		func(*mqttconn.Publish) {
			done.Add(1)
			<-places
		})
	if err != nil {
		t.Fatal(err)
	}
	for client, topic := range map[*mqttconn.Conn]string{
		responder: "request",
		requester: "response",
	} {
		if err := client.Subscribe(t.Context(),
			packets.SubOptions{Topic: topic, QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
	requests := publisher(t, b, "requests")
	payload := make([]byte, 100)
	hang := time.NewTimer(patience)
	defer hang.Stop()
	for end := time.Now().Add(duration); time.Now().Before(end); {
		hang.Reset(patience)
		select {
		case places <- struct{}{}:
		case <-hang.C:
			t.Fatalf("it hangs after %d requests", done.Load())
		}
		if err := requests.Publish(t.Context(),
			&packets.Publish{Topic: "request", Payload: payload},
			func(byte, error) {}); err != nil {
			t.Fatal(err)
		}
		requests.Flush()
	}
	for i := 0; i < outstanding; i++ { // all places free: everything is answered
		hang.Reset(patience)
		select {
		case places <- struct{}{}:
		case <-hang.C:
			t.Fatalf("the last requests are not answered, after %d", done.Load())
		}
	}
	t.Logf("%d requests in %v", done.Load(), duration)
}

// A PUBACK to a QoS 1 publish has reason 0 and no properties of the publish: some clients crash on
// anything else.
func TestPubackIsClean(t *testing.T) {
	b := startBroker(t)
	conn, err := net.Dial("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	connect := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: "raw",
		CleanStart: true, Properties: &packets.Properties{},
	}
	if _, err := connect.WriteTo(conn); err != nil {
		t.Fatal(err)
	}
	if _, err := packets.ReadPacket(conn); err != nil {
		t.Fatal(err)
	}
	publish := &packets.Publish{
		Topic: "t", QoS: 1, PacketID: 7, Payload: []byte("x"),
		Properties: &packets.Properties{User: []packets.User{{Key: "a", Value: "b"}}},
	}
	if _, err := publish.WriteTo(conn); err != nil {
		t.Fatal(err)
	}
	puback := make([]byte, 4)
	if _, err := io.ReadFull(conn, puback); err != nil ||
		!bytes.Equal(puback, []byte{0x40, 2, 0, 7}) {
		t.Errorf("%x, %v", puback, err)
	}
}

// subscribedNode connects a node, and returns the requests that it receives.
func subscribedNode(t *testing.T, b *Broker) <-chan *mqttconn.Publish {
	t.Helper()
	requests := make(chan *mqttconn.Publish, 10)
	node, err := connect(t, b, &packets.Connect{
		ClientID: "holdfast-n1-in", CleanStart: true,
		UsernameFlag: true, Username: "node", PasswordFlag: true, Password: []byte("secret"),
	},
		func(p *mqttconn.Publish) { requests <- p })
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Subscribe(t.Context(),
		packets.SubOptions{Topic: topics.Invoke, QoS: 1}); err != nil {
		t.Fatal(err)
	}
	return requests
}

// A request that no node's session receives is acknowledged with 0x10 (no matching subscribers), so
// that its client sends it again: a node may be about to subscribe.
func TestRequestThatNoNodeReceivesIsAcknowledgedWith0x10(t *testing.T) {
	b := startBroker(t)
	client := publisher(t, b, "client")
	acknowledged := func() byte {
		reasons := make(chan byte, 1)
		if err := client.Publish(t.Context(), &packets.Publish{Topic: topics.Invoke},
			func(reason byte, _ error) { reasons <- reason }); err != nil {
			t.Fatal(err)
		}
		client.Flush()
		return <-reasons
	}
	if reason := acknowledged(); reason != mqttconn.ReasonNoMatchingSubscriber {
		t.Errorf("nobody has subscribed: reason 0x%02X", reason)
	}
	observer, err := connect(t, b, &packets.Connect{ClientID: "observer", CleanStart: true},
		func(*mqttconn.Publish) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := observer.Subscribe(t.Context(), packets.SubOptions{Topic: "#", QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if reason := acknowledged(); reason != mqttconn.ReasonNoMatchingSubscriber {
		t.Errorf("no node has subscribed: reason 0x%02X", reason)
	}
	requests := subscribedNode(t, b)
	if reason := acknowledged(); reason != 0 {
		t.Errorf("a node has subscribed: reason 0x%02X", reason)
	}
	<-requests
}

func TestTakenPortIsAnError(t *testing.T) {
	b := startBroker(t)
	_, err := Start(Config{
		Listen: b.Address(), Log: slog.New(slog.DiscardHandler),
		Wall: func() int64 { return 1 },
	})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v", err)
	}
}

// Only nodes may connect with the client ids of nodes, or publish on the topics of notifications
// and probes.
func TestNodesAreProtected(t *testing.T) {
	b := startBroker(t)
	for name, options := range map[string]*packets.Connect{
		"a session's client id":               {ClientID: "holdfast-n1-in"},
		"a publishing connection's client id": {ClientID: "holdfast-out-0"},
		"a client id of nodes, a wrong password": {
			ClientID: "holdfast-out-0", UsernameFlag: true,
			Username: "node", PasswordFlag: true, Password: []byte("guess"),
		},
		"a will on a notification topic": {
			ClientID: "c", WillFlag: true,
			WillTopic: "clients/statestore/v1/x/y/command/notify/z", WillQOS: 1,
			WillProperties: &packets.Properties{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := connect(t, b, options, nil); err == nil {
				t.Errorf("%+v was let in", options)
			}
		})
	}
	if _, err := connect(t, b, &packets.Connect{
		ClientID: "holdfast-out-0", UsernameFlag: true,
		Username: "node", PasswordFlag: true, Password: []byte("secret"),
	}, nil); err != nil {
		t.Errorf("a node was not let in: %v", err)
	}
	for _, topic := range []string{
		"clients/statestore/v1/x/y/command/notify/z",
		"holdfast/holdfast/n1/probe",
	} {
		t.Run(topic, func(t *testing.T) {
			reasons := make(chan byte, 1)
			forger := publisher(t, b, "forger")
			err := forger.Publish(t.Context(), &packets.Publish{Topic: topic},
				func(reason byte, _ error) { reasons <- reason })
			forger.Flush()
			if reason := <-reasons; err != nil || reason != 0x87 {
				t.Errorf("%s: reason 0x%02X, %v", topic, reason, err)
			}
		})
	}
}

// Clients cannot forge the stamps: the user properties that the broker adds to requests. The time
// of a disconnect is the number in the stamps of its connection. Each connection has a greater
// number than earlier ones.
func TestStampsCannotBeForged(t *testing.T) {
	b := startBroker(t)
	disconnects := make(chan broker.Disconnect, 10)
	ctx, cancel := context.WithCancel(t.Context())
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		_ = b.WatchDisconnects(ctx, func(d broker.Disconnect) { disconnects <- d })
	}()
	defer func() {
		cancel()
		<-watching
	}()
	first := <-disconnects
	if !first.Everyone {
		t.Fatalf("%+v", first)
	}
	requests := subscribedNode(t, b)
	last := first.Time
	for range 3 {
		p := publisher(t, b, "client")
		forged := &packets.Properties{User: []packets.User{
			{Key: ClientIDProperty, Value: "victim"},
			{Key: connectionProperty, Value: "1"},
			{Key: "x", Value: "y"},
		}}
		if err := p.Publish(t.Context(), &packets.Publish{Topic: topics.Invoke, Properties: forged},
			func(byte, error) {}); err != nil {
			t.Fatal(err)
		}
		p.Flush()
		request := <-requests
		origin := b.Origin(request)
		if request.Properties.User.Get(ClientIDProperty) != "client" ||
			request.Properties.User.Get("x") != "y" || len(request.Properties.User) != 5 ||
			origin.Time <= last {
			t.Errorf("%v, %+v after %d", request.Properties.User, origin, last)
		}
		p.Close()
		if gone := <-disconnects; gone.ClientID != "client" || gone.Time != origin.Time {
			t.Errorf("%+v, but the request came from connection %d", gone, origin.Time)
		}
		last = origin.Time
	}
}

// A message that a session has not acknowledged comes again when the session is resumed, in order,
// also when the client uses the same packet ids in the other direction meanwhile.
func TestResumedSessionRedeliversInOrder(t *testing.T) {
	b := startBroker(t)
	conn := rawConnect(t, b, "raw", true)
	subscribe := &packets.Subscribe{
		PacketID: 1, Properties: &packets.Properties{},
		Subscriptions: []packets.SubOptions{{Topic: "t", QoS: 1}},
	}
	if _, err := subscribe.WriteTo(conn); err != nil {
		t.Fatal(err)
	}
	if _, err := packets.ReadPacket(conn); err != nil {
		t.Fatal(err)
	}
	const messages = 20
	sender := publisher(t, b, "sender")
	for i := range messages {
		if err := sender.Publish(t.Context(),
			&packets.Publish{Topic: "t", Payload: binary.BigEndian.AppendUint16(nil, uint16(i))},
			func(byte, error) {}); err != nil {
			t.Fatal(err)
		}
		sender.Flush()
	}
	for range messages { // received, and not acknowledged
		if packet, err := packets.ReadPacket(conn); err != nil || packet.Type != packets.PUBLISH {
			t.Fatal(packet, err)
		}
	}
	for id := range uint16(messages) { // the other direction, under the ids of messages in flight
		publish := &packets.Publish{
			Topic: "elsewhere", QoS: 1, PacketID: id + 1,
			Properties: &packets.Properties{},
		}
		if _, err := publish.WriteTo(conn); err != nil {
			t.Fatal(err)
		}
		packet, err := packets.ReadPacket(conn)
		if err != nil || packet.Type != packets.PUBACK ||
			packet.Content.(*packets.Puback).PacketID != id+1 {
			t.Fatalf("PUBACK to %d: %v, %v", id+1, packet, err)
		}
	}
	_ = conn.Close()
	conn = rawConnect(t, b, "raw", false)
	for i := range messages {
		packet, err := packets.ReadPacket(conn)
		if err != nil {
			t.Fatal(err)
		}
		publish, ok := packet.Content.(*packets.Publish)
		if !ok || !publish.Duplicate || binary.BigEndian.Uint16(publish.Payload) != uint16(i) {
			t.Fatalf("message %d: %v", i, packet)
		}
	}
}

// The broker removes the session of a disconnected client when the messages queued for it exceed
// maxSessionBytes. User properties count, too.
func TestSessionThatIsAwayIsBounded(t *testing.T) {
	b := startBroker(t)
	conn := rawConnect(t, b, "away", true)
	subscribe := &packets.Subscribe{
		PacketID: 1, Properties: &packets.Properties{},
		Subscriptions: []packets.SubOptions{{Topic: "t", QoS: 1}},
	}
	if _, err := subscribe.WriteTo(conn); err != nil {
		t.Fatal(err)
	}
	if _, err := packets.ReadPacket(conn); err != nil {
		t.Fatal(err)
	}
	away, _ := b.server.Clients.Get("away")
	_ = conn.Close()
	for deadline := time.Now().Add(patience); !away.Closed() && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
	sender := publisher(t, b, "sender")
	payload, property := make([]byte, 1<<19),
		packets.User{Key: "k", Value: strings.Repeat("x", 1<<15)}
	// as large as the payload
	properties := &packets.Properties{User: slices.Repeat([]packets.User{property}, 16)}
	acknowledged := make(chan struct{}, 100)
	for range 80 {
		if err := sender.Publish(t.Context(),
			&packets.Publish{Topic: "t", Payload: payload, Properties: properties},
			func(byte, error) { acknowledged <- struct{}{} }); err != nil {
			t.Fatal(err)
		}
		sender.Flush()
	}
	for range 80 {
		<-acknowledged
	}
	sum := 0
	for _, message := range away.State.Inflight.GetAll(false) {
		sum += len(message.Payload)
	}
	if _, there := b.server.Clients.Get("away"); there || sum > maxSessionBytes {
		t.Errorf("the session is there: %v, with %d bytes", there, sum)
	}
}

func rawConnect(t *testing.T, b *Broker, id string, clean bool) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	expiry := uint32(100)
	connect := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: id,
		CleanStart: clean, Properties: &packets.Properties{SessionExpiryInterval: &expiry},
	}
	if _, err := connect.WriteTo(conn); err != nil {
		t.Fatal(err)
	}
	if packet, err := packets.ReadPacket(conn); err != nil || packet.Type != packets.CONNACK {
		t.Fatal(packet, err)
	}
	return conn
}

// Every client id that a node uses is reserved for nodes. Similar ones are not.
func TestNodesClientIDsAreReserved(t *testing.T) {
	nodes := nodeLogin{&Config{Cluster: "holdfast"}}
	for id, reserved := range map[string]bool{
		"holdfast-n1-in": true, "holdfast-n1-in-0123abcd": true, "holdfast-ingest": true,
		"holdfast-out-0": true, "holdfast-n1-presence": true,
		"press": false, "holdfast": false, "holdfast-press": false, "holdfaster-ingest": false,
		"holdfast-in-0": false,
	} {
		t.Run(id, func(t *testing.T) {
			if nodes.reserved(id) != reserved {
				t.Errorf("%v", !reserved)
			}
		})
	}
}

// Kick returns nil for a client that is not connected any more.
func TestKickOfAClientThatIsGoneSucceeds(t *testing.T) {
	b := startBroker(t)
	if err := b.Kick(t.Context(), broker.Publisher{ClientID: "gone"}); err != nil {
		t.Error(err)
	}
}
