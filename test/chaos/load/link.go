package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/topics"
	"holdfast/test/workload"
)

const (
	keepAlive   = 10 * time.Second
	dialTime    = 3 * time.Second
	reconnect   = 200 * time.Millisecond
	sessionLife = time.Hour
)

// link carries the messages of one client over MQTT 5. It reconnects whenever its connection ends.
type link struct {
	*workload.Client
	load        *workload.Load
	broker      string
	persistent  bool // the broker keeps its session while it is away
	disconnects *atomic.Int64
	out         chan *workload.Publication
}

// newLink returns a client that stays connected, or tries to, until the load ends.
func newLink(load *workload.Load, broker, id string, persistent bool,
	disconnects *atomic.Int64,
) *link {
	l := &link{
		load: load, broker: broker, persistent: persistent, disconnects: disconnects,
		out: make(chan *workload.Publication, 4096),
	}
	l.Client = load.Hire(id, l.publish)
	load.Go(l.stayConnected)
	return l
}

// publish puts a publication into the queue. It is lost if the queue is full, and if it is still
// queued when a connection ends or cannot be made.
func (l *link) publish(p *workload.Publication) {
	select {
	case l.out <- p:
	default:
	}
}

func (l *link) stayConnected() {
	for again, failed := false, false; !l.load.Ended(); l.load.Sleep(reconnect) {
		c, present, err := dial(l.broker, l.ID, l.persistent,
			[]string{l.ResponseTopic(), l.NotifyFilter()})
		if err != nil {
			l.drain()
			// the broker may have begun a new session all the same; the next connection then finds
			// it present
			failed = true
			continue
		}
		if again && (failed || !present) {
			l.MissedNotes()
		}
		again, failed = true, false
		l.carry(c)
		l.disconnects.Add(1)
		if !l.persistent {
			l.MissedNotes()
		}
		l.drain()
	}
}

// drain empties the queue; the publications in it are lost.
func (l *link) drain() {
	for {
		select {
		case <-l.out:
		default:
			return
		}
	}
}

// carry passes messages in both directions until the connection or the load ends.
func (l *link) carry(c *connection) {
	var working sync.WaitGroup
	working.Go(func() {
		c.receive(func(p *packets.Publish) {
			l.Receive(p.Topic, p.Payload,
				p.Properties)
		})
	})
	working.Go(c.keepAlive)
	for ended := false; !ended; {
		select {
		case <-l.load.Done():
			ended = true
		case <-c.gone:
			ended = true
		case p := <-l.out:
			// Only the PUBACK shows that the broker has it.
			ended = c.publish(topics.Invoke, p.Payload, p.Properties,
				func() { p.Reached([]string{"broker"}) }) != nil
		}
	}
	c.end()
	working.Wait()
}

// connection is one connection to the broker.
type connection struct {
	conn   net.Conn
	reader *bufio.Reader
	gone   chan struct{}
	once   sync.Once
	// one element for each unacknowledged publication; its capacity is the broker's Receive
	// Maximum, at most 1000
	window chan struct{}

	mu           sync.Mutex
	lastPacketID uint16 // packet id of the last publication
	// by packet id of an unacknowledged publication: what its PUBACK calls
	flight  map[uint16]func()
	writing sync.Mutex // held while a packet is written
}

// dial connects, and subscribes. present says that the broker has kept the session.
func dial(broker, id string, persistent bool, filters []string) (c *connection, present bool,
	err error,
) {
	conn, err := net.DialTimeout("tcp", broker, dialTime)
	if err != nil {
		return nil, false, err
	}
	c = &connection{
		conn: conn, reader: bufio.NewReader(conn), gone: make(chan struct{}),
		flight: make(map[uint16]func()),
	}
	present, err = c.open(id, persistent, filters)
	if err != nil {
		_ = conn.Close() // the error of open is returned
	}
	return c, present, err
}

func (c *connection) open(id string, persistent bool, filters []string) (present bool, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(dialTime)); err != nil {
		return false, err
	}
	connect := packets.NewControlPacket(packets.CONNECT)
	content := connect.Content.(*packets.Connect)
	content.ClientID, content.CleanStart, content.KeepAlive = id, !persistent,
		uint16(keepAlive/time.Second)
	expiry, receive := uint32(0), uint16(65535)
	if persistent {
		expiry = uint32(sessionLife / time.Second)
	}
	content.Properties = &packets.Properties{
		SessionExpiryInterval: &expiry,
		ReceiveMaximum:        &receive,
	}
	if _, err := connect.WriteTo(c.conn); err != nil {
		return false, err
	}
	answer, err := packets.ReadPacket(c.reader)
	if err != nil {
		return false, err
	}
	connack, ok := answer.Content.(*packets.Connack)
	if !ok || connack.ReasonCode != 0 {
		return false, fmt.Errorf("%s is refused: %v", id, answer.Content)
	}
	// if the CONNACK names none; far below MQTT's default of 65,535, because what is in flight when
	// the broker fails may be lost
	window := 20
	if connack.Properties != nil && connack.Properties.ReceiveMaximum != nil {
		window = int(*connack.Properties.ReceiveMaximum)
	}
	c.window = make(chan struct{}, min(window, 1000))
	subscribe := packets.NewControlPacket(packets.SUBSCRIBE)
	subscription := subscribe.Content.(*packets.Subscribe)
	subscription.PacketID = 65535
	for _, filter := range filters {
		subscription.Subscriptions = append(subscription.Subscriptions,
			packets.SubOptions{Topic: filter, QoS: 1})
	}
	if _, err := subscribe.WriteTo(c.conn); err != nil {
		return false, err
	}
	// receive reads the SUBACK.
	return connack.SessionPresent, c.conn.SetDeadline(time.Time{})
}

// end ends the connection, at once.
func (c *connection) end() {
	c.once.Do(func() {
		close(c.gone)
		_ = c.conn.Close()
	})
}

func (c *connection) write(p *packets.ControlPacket) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	// A broker that has read nothing for so long would end the connection itself, because the
	// keep-alive has passed.
	if err := c.conn.SetWriteDeadline(time.Now().Add(2 * keepAlive)); err != nil {
		return err
	}
	_, err := p.WriteTo(c.conn)
	return err
}

// receive reads packets until the connection ends. It calls take for each message, and acknowledges
// it afterwards.
func (c *connection) receive(take func(*packets.Publish)) {
	defer c.end()
	for {
		if err := c.conn.SetReadDeadline(time.Now().Add(2 * keepAlive)); err != nil {
			return
		}
		packet, err := packets.ReadPacket(c.reader)
		if err != nil {
			return
		}
		switch content := packet.Content.(type) {
		case *packets.Publish:
			take(content)
			if content.QoS == 1 {
				ack := packets.NewControlPacket(packets.PUBACK)
				ack.Content.(*packets.Puback).PacketID = content.PacketID
				if c.write(ack) != nil {
					return
				}
			}
		case *packets.Puback:
			c.acknowledged(content)
		case *packets.Suback:
			if slices.ContainsFunc(content.Reasons,
				func(reason byte) bool { return reason >= 0x80 }) {
				return // a subscription was refused, so no reply would come
			}
		case *packets.Disconnect:
			return
		}
	}
}

func (c *connection) acknowledged(ack *packets.Puback) {
	c.mu.Lock()
	done := c.flight[ack.PacketID]
	delete(c.flight, ack.PacketID)
	c.mu.Unlock()
	if done == nil {
		return
	}
	<-c.window
	if ack.ReasonCode == 0 {
		done()
	}
}

// keepAlive pings until the connection ends.
func (c *connection) keepAlive() {
	ticker := time.NewTicker(keepAlive / 2)
	defer ticker.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-ticker.C:
		}
		if c.write(packets.NewControlPacket(packets.PINGREQ)) != nil {
			c.end()
			return
		}
	}
}

var errGone = errors.New("the connection has ended")

// publish publishes with QoS 1. It waits for room in the window. done is called when a PUBACK with
// reason 0 comes.
func (c *connection) publish(topic string, payload []byte, properties *packets.Properties,
	done func(),
) error {
	select {
	case c.window <- struct{}{}:
	case <-c.gone:
		return errGone
	}
	packet := packets.NewControlPacket(packets.PUBLISH)
	publish := packet.Content.(*packets.Publish)
	publish.Topic, publish.Payload, publish.QoS, publish.Properties = topic, payload, 1, properties
	c.mu.Lock()
	for c.lastPacketID++; c.lastPacketID == 0 || c.lastPacketID == 65535 ||
		c.flight[c.lastPacketID] != nil; {
		c.lastPacketID++
	}
	publish.PacketID = c.lastPacketID
	c.flight[c.lastPacketID] = done
	c.mu.Unlock()
	return c.write(packet)
}
