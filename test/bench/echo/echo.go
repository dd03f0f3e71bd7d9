// Package echo answers requests of the state store without doing anything. It shows what a broker
// and its clients can do at most when the store costs nothing. A responder has the same connections
// as a node. It acknowledges each request as it comes, and answers at once, with as many bytes and
// properties as a real reply.
package echo

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
)

// Config says what a responder answers, and how.
type Config struct {
	Dialer   *mqttconn.Dialer
	Username string
	Password []byte
	// ClientID is the client id of the subscribing connection. Publishing connections append
	// "-out-" and a number to it.
	ClientID string
	// Topic is where the requests are published.
	Topic string
	// ValueSize is the size in bytes of the value in the reply to a GET.
	ValueSize int
	// Publishers is the number of connections on which replies are published. 0 means 2, as many as
	// a node has.
	Publishers int
	// Connected is called when the responder is ready.
	Connected func()
}

const (
	maxPacket = 20 << 20
	window    = 4096
	keepAlive = 30 // seconds
	// timestamp is as long as a version of the store.
	timestamp = "1700000000000:0:StateStore"
)

// Run answers until the context ends, or the subscribing connection ends, which is an error.
func Run(ctx context.Context, config Config) error {
	if config.Publishers == 0 {
		config.Publishers = 2
	}
	r := &responder{config: config, value: reply(config.ValueSize)}
	defer r.close()
	for i := range config.Publishers {
		if err := r.addPublisher(ctx, i); err != nil {
			return fmt.Errorf("echo: %w", err)
		}
	}
	if err := r.serve(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("echo: %w", err)
	}
	return nil
}

func reply(size int) []byte {
	return append(append(fmt.Appendf(nil, "$%d\r\n", size), bytes.Repeat([]byte{'x'}, size)...),
		"\r\n"...)
}

type responder struct {
	config     Config
	value      []byte // the reply to a GET
	publishers []*mqttconn.Publisher
	acks       *mqttconn.Acks
	// unacknowledged counts the replies that the broker has not acknowledged.
	unacknowledged atomic.Int64
}

func (r *responder) close() {
	for _, publisher := range r.publishers {
		publisher.Close()
	}
}

func (r *responder) addPublisher(ctx context.Context, number int) error {
	conn, err := r.config.Dialer.Dial(ctx)
	if err != nil {
		return err
	}
	publisher, err := mqttconn.NewPublisher(ctx, conn, &packets.Connect{
		ClientID: fmt.Sprintf("%s-out-%d", r.config.ClientID, number), CleanStart: true,
		KeepAlive: keepAlive,
		Username:  r.config.Username, UsernameFlag: r.config.Username != "",
		Password: r.config.Password, PasswordFlag: r.config.Password != nil,
	}, window)
	if err == nil {
		r.publishers = append(r.publishers, publisher)
	}
	return err
}

func (r *responder) serve(ctx context.Context) error {
	network, err := r.config.Dialer.Dial(ctx)
	if err != nil {
		return err
	}
	receiveMaximum := uint16(65535)
	conn, _, err := mqttconn.Connect(ctx, network, &packets.Connect{
		ClientID: r.config.ClientID, CleanStart: true, KeepAlive: keepAlive,
		Username: r.config.Username, UsernameFlag: r.config.Username != "",
		Password: r.config.Password, PasswordFlag: r.config.Password != nil,
		Properties: &packets.Properties{ReceiveMaximum: &receiveMaximum},
	}, mqttconn.Receiver{
		MaxPacket: maxPacket, Publish: func(m mqttconn.Message) { r.received(ctx, m.Publish) },
		Idle:            r.flush,
		CoalescingDelay: r.coalescingDelay,
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	r.acks = mqttconn.NewAcks(conn)
	conn.Start()
	if err := conn.Subscribe(ctx, packets.SubOptions{
		Topic: r.config.Topic, QoS: 1, NoLocal: true,
		RetainAsPublished: true, RetainHandling: 2,
	}); err != nil {
		return err
	}
	if r.config.Connected != nil {
		r.config.Connected()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-conn.Done():
		return conn.Err()
	}
}

// received answers a request. serve notices the end of the subscribing connection; replies on a
// lost publishing connection are lost.
func (r *responder) received(ctx context.Context, p *mqttconn.Publish) {
	if p.QoS == 1 {
		_ = r.acks.Done(r.acks.Arrived(p.PacketID))
	}
	if p.Properties.ResponseTopic == "" {
		return
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(p.Properties.ResponseTopic)) // never fails
	publisher := r.publishers[hash.Sum32()%uint32(len(r.publishers))]
	r.unacknowledged.Add(1)
	done := func(byte, error) { r.unacknowledged.Add(-1) }
	if err := publisher.Publish(ctx, r.answer(p), done); err != nil { // done is not called
		r.unacknowledged.Add(-1)
	}
}

// flush sends the buffered replies.
func (r *responder) flush() {
	for _, publisher := range r.publishers {
		publisher.Flush()
	}
}

func (r *responder) answer(p *mqttconn.Publish) *packets.Publish {
	format, expiry := byte(0), uint32(time.Minute/time.Second)
	payload := []byte("+OK\r\n")
	if bytes.HasPrefix(p.Payload, []byte("*2\r\n$3\r\nGET")) {
		payload = r.value
	}
	return &packets.Publish{
		Topic: p.Properties.ResponseTopic, Payload: payload,
		Properties: &packets.Properties{
			CorrelationData: p.Properties.CorrelationData, ContentType: "application/octet-stream",
			PayloadFormat: &format, MessageExpiry: &expiry,
			User: []packets.User{
				{Key: "__stat", Value: "200"},
				{Key: "__protVer", Value: "1.0"},
				{Key: "__ts", Value: timestamp},
			},
		},
	}
}

// coalescingDelay imitates the coalescing delay of a leader: how long it waits before it reads, so
// that it reads several messages at once. As in the store it is 0 with few requests under way. A
// busy leader of the store waits at most a quarter of the average time of a request, and at most 20
// ms. A busy responder waits 2 ms.
func (r *responder) coalescingDelay() time.Duration {
	const enoughToDo = 16
	if r.unacknowledged.Load() < enoughToDo {
		return 0
	}
	return 2 * time.Millisecond
}
