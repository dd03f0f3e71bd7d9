package mqttconn

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// connected connects by a broker that answers CONNECT, and returns the broker's end. Reading has
// begun.
func connected(t *testing.T, properties *packets.Properties, receiver Receiver) (c *Conn,
	broker net.Conn,
) {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		if _, err := ReadPacket(bufio.NewReader(far), 1<<20); err == nil {
			_, _ = (&packets.Connack{Properties: properties}).WriteTo(far)
		}
	}()
	if receiver.MaxPacket == 0 {
		receiver.MaxPacket = 1 << 20
	}
	c, _, err := Connect(t.Context(), near, &packets.Connect{ClientID: "c", KeepAlive: 30},
		receiver)
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	return c, far
}

// reply reads packets and writes what answer returns, until the connection ends.
func reply(conn net.Conn, answer func(*packets.ControlPacket) packets.Packet) {
	for reader := bufio.NewReader(conn); ; {
		packet, err := ReadPacket(reader, 1<<20)
		if err != nil {
			return
		}
		if a := answer(packet); a != nil {
			if _, err := a.WriteTo(conn); err != nil {
				return
			}
		}
	}
}

// Publish returns the reason code of the PUBACK, and Subscribe an error unless each filter gets its
// QoS. A SUBACK must have exactly one reason code for each filter.
func TestPublishAndSubscribeWaitForTheirAnswers(t *testing.T) {
	suback := []byte{1, 0}
	c, broker := connected(t, &packets.Properties{}, Receiver{Publish: func(Message) {}})
	go reply(broker, func(packet *packets.ControlPacket) packets.Packet {
		switch content := packet.Content.(type) {
		case *packets.Publish:
			return &packets.Puback{
				PacketID: content.PacketID, ReasonCode: 0x87,
				Properties: &packets.Properties{},
			}
		case *packets.Subscribe:
			return &packets.Suback{
				PacketID: content.PacketID, Reasons: suback,
				Properties: &packets.Properties{},
			}
		case *packets.Pingreq:
			return &packets.Pingresp{}
		}
		return nil
	})
	if reason, err := c.Publish(t.Context(), &Publish{Topic: "t", QoS: 1}); reason != 0x87 ||
		err != nil {
		t.Errorf("reason 0x%02X, %v", reason, err)
	}
	if reason, err := c.Publish(t.Context(), &Publish{Topic: "t"}); reason != 0 || err != nil {
		t.Errorf("at QoS 0: reason 0x%02X, %v", reason, err)
	}
	filters := []packets.SubOptions{{Topic: "a", QoS: 1}, {Topic: "b"}}
	for _, test := range []struct {
		suback []byte
		ok     bool
	}{
		{[]byte{1, 0}, true},
		{[]byte{0, 0}, false},
		{[]byte{1, 0x87}, false},
		{[]byte{1}, false},
		{nil, false},
		{[]byte{1, 0, 0}, false},
	} {
		suback = test.suback
		if err := c.Subscribe(t.Context(), filters...); (err == nil) != test.ok {
			t.Errorf("a SUBACK with %x: %v", test.suback, err)
		}
	}
	c.Close()
	_ = broker.Close()
	if _, err := c.Publish(t.Context(), &Publish{Topic: "t", QoS: 1}); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// No more messages are in flight than the broker's Receive Maximum allows, also when callers stop
// waiting. A message above its Maximum Packet Size is not sent.
func TestPublishRespectsTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, window := uint32(100), uint16(2)
		c, broker := connected(t,
			&packets.Properties{MaximumPacketSize: &limit, ReceiveMaximum: &window},
			Receiver{Publish: func(Message) {}})
		if _, err := c.Publish(t.Context(),
			&Publish{Topic: "t", QoS: 1, Payload: make([]byte, 100)}); !errors.Is(err,
			ErrTooLarge) {
			t.Errorf("too large: %v", err)
		}
		var ids []uint16
		go reply(broker, func(packet *packets.ControlPacket) packets.Packet {
			if content, ok := packet.Content.(*packets.Publish); ok {
				ids = append(ids, content.PacketID)
			}
			return nil
		})
		try := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Publish(ctx, &Publish{Topic: "t", QoS: 1})
			synctest.Wait()
			return err
		}
		for range 3 {
			if err := try(); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if len(ids) != 2 || ids[0] < FirstID || ids[0] == ids[1] {
			t.Fatalf("packet ids %v are in flight", ids)
		}
		// late
		_, _ = (&packets.Puback{PacketID: ids[0], Properties: &packets.Properties{}}).WriteTo(
			broker)
		if _ = try(); len(ids) != 3 {
			t.Errorf("%d messages after a PUBACK that nobody waited for", len(ids))
		}
		c.Close()
		_ = broker.Close()
	})
}

// Err says why the connection ended.
func TestConnectionSaysWhyItEnded(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(c *Conn, broker net.Conn)
		want error
	}{
		"the broker closes": {func(_ *Conn, broker net.Conn) {
			// PINGREQ, so that no write fails before the read
			_, _ = io.ReadFull(broker, make([]byte, 2))
			_ = broker.Close()
		}, io.EOF},
		"a packet too large": {func(_ *Conn, broker net.Conn) {
			_,
				_ = broker.Write([]byte{0x30, 0xff, 0xff, 0x7f})
		}, ErrPacketTooLarge},
		"a CONNACK in the middle": {func(_ *Conn, broker net.Conn) {
			_,
				_ = broker.Write([]byte{0x20, 3, 0, 0, 0})
		}, nil},
		"this side": {
			func(c *Conn,
				broker net.Conn,
			) {
				go func() { _, _ = io.Copy(io.Discard, broker) }()
				c.Close()
			},
			ErrClosed,
		},
		"silence": {func(_ *Conn, broker net.Conn) {
			_,
				_ = io.Copy(io.Discard, broker)
		}, ErrSilent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, broker := connected(t, &packets.Properties{},
					Receiver{Publish: func(Message) {}})
				test.end(c, broker)
				<-c.Done()
				if err := c.Err(); err == nil || test.want != nil && !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				_ = broker.Close()
				c.Close()
			})
		})
	}
	t.Run("DISCONNECT without a reason", func(t *testing.T) {
		c, broker := connected(t, &packets.Properties{}, Receiver{Publish: func(Message) {}})
		_, _ = broker.Write([]byte{0xe0, 0})
		<-c.Done()
		if closed := (*ReasonCodeError)(nil); !errors.As(c.Err(), &closed) || closed.Reason != 0 {
			t.Error(c.Err())
		}
		_ = broker.Close()
		c.Close()
	})
	t.Run("a packet that is too short", func(t *testing.T) {
		c, broker := connected(t, &packets.Properties{}, Receiver{Publish: func(Message) {}})
		_, _ = broker.Write([]byte{0x90, 2, 0x80, 0})
		<-c.Done()
		if !errors.Is(c.Err(), errMalformed) {
			t.Error(c.Err())
		}
		_ = broker.Close()
		c.Close()
	})
	t.Run("DISCONNECT", func(t *testing.T) {
		c, broker := connected(t, &packets.Properties{}, Receiver{Publish: func(Message) {}})
		_, _ = (&packets.Disconnect{
			ReasonCode: ReasonSessionTakenOver,
			Properties: &packets.Properties{},
		}).WriteTo(broker)
		<-c.Done()
		if !IsTakenOver(c.Err()) {
			t.Error(c.Err())
		}
		_ = broker.Close()
		c.Close()
	})
}

// A CONNACK that refuses, or that says what MQTT forbids, is an error, and the context bounds the
// handshake.
func TestHandshakeFails(t *testing.T) {
	zero := uint16(0)
	for name, connack := range map[string]*packets.Connack{
		"refused":           {ReasonCode: 0x86, Properties: &packets.Properties{}},
		"Receive Maximum 0": {Properties: &packets.Properties{ReceiveMaximum: &zero}},
		"no answer":         nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				go func() {
					if _, err := ReadPacket(bufio.NewReader(far), 1<<20); err == nil &&
						connack != nil {
						_, _ = connack.WriteTo(far)
					}
				}()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if c, _, err := Connect(ctx, near, &packets.Connect{ClientID: "c"},
					Receiver{MaxPacket: 1024}); err == nil {
					c.Close()
					t.Error("connected")
				}
				_ = far.Close()
			})
		})
	}
}

// While the broker does not read, Close takes at most closeGrace, and ends a Send that is blocked.
func TestCloseEndsABlockedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// no PINGREQ: it would wait for a mutex, which is not durable in a bubble
		never := uint16(0)
		c, broker := connected(t, &packets.Properties{ServerKeepAlive: &never},
			Receiver{Publish: func(Message) {}})
		sent := make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				err = c.Send(make([]byte, maxBuffered))
			}
			sent <- err
		}()
		synctest.Wait()
		began := time.Now()
		c.Close()
		if took := time.Since(began); took > closeGrace {
			t.Errorf("Close took %v", took)
		}
		if err := <-sent; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		_ = broker.Close()
	})
}

// An answer of another kind than was asked for answers nothing.
func TestAnswerMustBeOfTheRightKind(t *testing.T) {
	c, broker := connected(t, &packets.Properties{}, Receiver{Publish: func(Message) {}})
	go reply(broker, func(packet *packets.ControlPacket) packets.Packet {
		switch content := packet.Content.(type) {
		case *packets.Publish:
			for _, wrong := range [][]byte{
				// SUBACK without reasons
				{0x90, 3, byte(content.PacketID >> 8), byte(content.PacketID), 0},
				{0x40, 2, 0, 9}, // to nothing
			} {
				_, _ = broker.Write(wrong)
			}
			return &packets.Puback{
				PacketID: content.PacketID, ReasonCode: 1,
				Properties: &packets.Properties{},
			}
		case *packets.Subscribe:
			_, _ = broker.Write([]byte{
				0x40, 2, byte(content.PacketID >> 8),
				byte(content.PacketID),
			})
			return &packets.Suback{
				PacketID: content.PacketID, Reasons: []byte{0x87},
				Properties: &packets.Properties{},
			}
		}
		return nil
	})
	if reason, err := c.Publish(t.Context(), &Publish{Topic: "t", QoS: 1}); reason != 1 ||
		err != nil {
		t.Errorf("reason 0x%02X, %v", reason, err)
	}
	if err := c.Subscribe(t.Context(), packets.SubOptions{Topic: "t"}); err == nil {
		t.Error("a PUBACK grants a subscription")
	}
	_ = broker.Close()
	c.Close()
}

// A message is acknowledged although a Send waits for room: the broker may not read before it is.
func TestAcknowledgingDoesNotWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := uint16(0)
		var acks *Acks
		acknowledged := make(chan error, 1)
		c, broker := connected(t, &packets.Properties{ServerKeepAlive: &never},
			Receiver{Publish: func(m Message) {
				acknowledged <- acks.Done(acks.Arrived(m.PacketID))
			}})
		acks = NewAcks(c)
		go func() {
			for c.Send(make([]byte, maxBuffered+1)) == nil {
			}
		}()
		synctest.Wait() // it waits for room
		_, _ = broker.Write(AppendPublish(nil, &packets.Publish{Topic: "t", QoS: 1, PacketID: 1}))
		synctest.Wait()
		select {
		case err := <-acknowledged:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the reader waits for room")
		}
		_ = broker.Close()
		c.Close()
	})
}
