package mqttconn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The encoder writes what paho's decoder reads, and its size is what PublishSize says.
func TestEncodedPublishIsWhatPahoReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z]{0,200}`)
		p := &packets.Publish{
			Topic: "t" + text.Draw(t, "topic"), QoS: 1,
			PacketID: rapid.Uint16Range(1, 65535).Draw(t, "id"),
			Retain:   rapid.Bool().Draw(t, "retain"), Duplicate: rapid.Bool().Draw(t, "dup"),
			Payload: bytes.Repeat([]byte("x"), rapid.IntRange(0, 20_000).Draw(t, "payload")),
			Properties: &packets.Properties{
				ContentType:   text.Draw(t, "type"),
				ResponseTopic: text.Draw(t, "response"),
			},
		}
		if rapid.Bool().Draw(t, "more") {
			format, expiry := byte(1), uint32(7)
			p.Properties.PayloadFormat, p.Properties.MessageExpiry = &format, &expiry
			p.Properties.CorrelationData = []byte(text.Draw(t, "correlation"))
			p.Properties.User = []packets.User{{
				Key:   text.Draw(t, "key"),
				Value: text.Draw(t, "value"),
			}, {Key: "a", Value: "b"}}
		}
		encoded := AppendPublish(nil, p)
		if size, ok := PublishSize(p); !ok || size != len(encoded) {
			t.Fatalf("%d bytes, PublishSize says %d", len(encoded), size)
		}
		packet, err := ReadPacket(bufio.NewReader(bytes.NewReader(encoded)), len(encoded))
		if err != nil {
			t.Fatal(err)
		}
		got := packet.Content.(*packets.Publish)
		if got.Topic != p.Topic || got.PacketID != p.PacketID ||
			!bytes.Equal(got.Payload, p.Payload) || got.Retain != p.Retain ||
			got.Duplicate != p.Duplicate ||
			!bytes.Equal(got.Properties.CorrelationData, p.Properties.CorrelationData) ||
			len(got.Properties.User) != len(p.Properties.User) ||
			got.Properties.ResponseTopic != p.Properties.ResponseTopic ||
			got.Properties.ContentType != p.Properties.ContentType {
			t.Fatalf("%+v\n%+v", got, p)
		}
	})
	if _, ok := PublishSize(&packets.Publish{Topic: strings.Repeat("t", 65_536)}); ok {
		t.Error("a topic that cannot be encoded")
	}
}

// A header that claims more than the limit is refused before the rest of the packet is read.
func TestReadPacketIsBounded(t *testing.T) {
	for _, header := range []string{
		"\x30\xff\xff\xff\x7f", "\x30\xff\xff\xff\xff\x0f",
		"\x30\x80\x80\x80\x80\x01", "\x30\x81\x08",
	} {
		t.Run(header, func(t *testing.T) {
			reader := bufio.NewReader(strings.NewReader(header + strings.Repeat("x", 100)))
			if _, err := ReadPacket(reader, 1024); err == nil {
				t.Errorf("%x was read", header)
			}
			near, far := net.Pipe()
			conn := newConn(near,
				Receiver{
					MaxPacket: 1024,
					Publish:   func(m Message) { t.Errorf("%x was received: %+v", header, m) },
				})
			go func() {
				_, _ = far.Write([]byte(header)) // as much as is read
				_ = far.Close()
			}()
			conn.read()
			if err := conn.Err(); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%x was received: %v", header, err)
			}
			_ = near.Close()
		})
	}
}

func TestBrokerAddressesAreParsed(t *testing.T) {
	for text, want := range map[string]Address{
		"mqtt://h": {"h:1883", false}, "mqtts://h": {"h:8883", true}, "mqtt://h:1": {"h:1", false},
		"tcp://h:1/": {"h:1", false},
		"ssl://h":    {"h:8883", true}, "h:1883": {"h:1883", false},
		"[::1]:1883": {"[::1]:1883", false}, "mqtt://[::1]": {"[::1]:1883", false},
		"mqtts://mq1": {"mq1:8883", true},
	} {
		t.Run(text, func(t *testing.T) {
			if got, err := ParseAddress(text); err != nil || got != want {
				t.Errorf("%q: %+v, %v", text, got, err)
			}
		})
	}
	for _, text := range []string{
		"", "h", ":1883", "h:", "ftp://h", "mqtt://", "mqtt://h/x",
		"mqtt://h#f", "mqtt://u:p@h", "mqtt://h:x", "mqtt://h:99999", "h:0", "localhost:abc",
	} {
		t.Run(text, func(t *testing.T) {
			if got, err := ParseAddress(text); !errors.Is(err, ErrAddress) {
				t.Errorf("%q: %+v, %v", text, got, err)
			}
		})
	}
}

// Messages go to the Receiver, in whatever pieces they arrive. While the Receiver handles a
// message, nothing more is read.
func TestNothingIsReadWhileTheReceiverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		inHand, letGo := make(chan Message), make(chan struct{})
		var pubacks []uint16
		conn := newConn(near, Receiver{
			MaxPacket: 1 << 20,
			Publish: func(m Message) {
				inHand <- m
				<-letGo
			},
			Puback: func(id uint16, reason byte) bool {
				pubacks = append(pubacks, id)
				return reason == 0x10
			},
		})
		expiry := uint32(7)
		message := AppendPublish(nil,
			&packets.Publish{
				Topic: "t", QoS: 1, PacketID: 9, Payload: []byte("payload"),
				Properties: &packets.Properties{
					ResponseTopic: "r", CorrelationData: []byte("c"), MessageExpiry: &expiry,
					User: []packets.User{{Key: "k", Value: "v"}},
				},
			})
		// PINGRESP, a PUBACK for the Receiver, another PUBACK
		others := []byte{0xd0, 0, 0x40, 3, 0, 1, 0x10, 0x40, 2, 0, 2}
		var read atomic.Int64 // bytes
		go func() {
			for _, b := range append(append(append([]byte{}, message...), others...), message...) {
				if _, err := far.Write([]byte{b}); err != nil {
					return
				}
				read.Add(1)
			}
			_ = far.Close()
		}()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			conn.read()
		}()
		for i, upTo := range []int{len(message), 2*len(message) + len(others)} {
			p := <-inHand
			synctest.Wait() // so that a reader that read ahead would have done so
			if n := read.Load(); i == 0 && n != int64(upTo) {
				t.Errorf("%d bytes are read while the receiver has the message that ends at %d", n,
					upTo)
			}
			if p.Topic != "t" || p.QoS != 1 || p.PacketID != 9 || string(p.Payload) != "payload" ||
				p.Properties.ResponseTopic != "r" ||
				string(p.Properties.CorrelationData) != "c" || *p.Properties.MessageExpiry != 7 ||
				p.Properties.User.Get("k") != "v" {
				t.Errorf("%+v %+v", p, p.Properties)
			}
			if p.Size < len(message) || p.Redelivered {
				t.Errorf("%d bytes for a packet of %d, redelivered: %v", p.Size, len(message),
					p.Redelivered)
			}
			if !conn.handling.Load() {
				t.Error("the receiver handles a message, and that is not known")
			}
			letGo <- struct{}{}
		}
		<-ended
		if !slices.Equal(pubacks, []uint16{1, 2}) || conn.received.Load() != 5 ||
			!errors.Is(conn.Err(), io.EOF) {
			t.Errorf("PUBACKs of %v, %d received, %v", pubacks, conn.received.Load(), conn.Err())
		}
		_ = near.Close()
	})
}

// Idle is called after the last complete message, also if the bytes that follow it end the reading.
func TestIdleIsCalledBeforeReadFails(t *testing.T) {
	for name, end := range map[string][]byte{
		"DISCONNECT": {0xe0, 0},
		"too large":  {0x30, 0xff, 0xff, 0x7f}, "malformed": {0x32, 3, 0, 9, 't'},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			received, idleAfter := false, false
			conn := newConn(near, Receiver{
				MaxPacket: 1024, Publish: func(Message) { received, idleAfter = true, false },
				Idle: func() { idleAfter = received },
			})
			go func() {
				// as much as is read
				_, _ = far.Write(
					append(AppendPublish(nil, &packets.Publish{Topic: "t", QoS: 1, PacketID: 1}),
						end...))
			}()
			conn.read()
			if !idleAfter {
				t.Error("Idle was not called after the last message")
			}
			_ = far.Close()
			_ = near.Close()
		})
	}
}

// A write during the reader's coalescing delay is sent when the delay is over.
func TestWritesDuringACoalescingDelayAreSentAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 20 * time.Millisecond
		never := uint16(0) // no PINGREQ
		delays := 0
		conn, far := connected(t, &packets.Properties{ServerKeepAlive: &never},
			Receiver{Publish: func(Message) {}, CoalescingDelay: func() time.Duration {
				if delays++; delays > 1 {
					return 0
				}
				return delay
			}})
		synctest.Wait() // the reader is in its delay
		began := time.Now()
		if err := conn.Send([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took == 0 || took > delay {
			t.Errorf("it came after %v", took)
		}
		_ = far.Close()
		conn.Close()
	})
}

// The decoder reads what paho's encoder writes.
func TestDecoderReadsWhatPahoWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z/]{0,200}`)
		format, expiry, subscription := byte(1), rapid.Uint32().Draw(t, "expiry"), 300
		want := &packets.Publish{
			Topic: text.Draw(t, "topic"), QoS: rapid.Byte().Draw(t, "qos") % 2,
			PacketID: rapid.Uint16Range(1, 65535).Draw(t, "id"),
			Retain:   rapid.Bool().Draw(t, "retain"), Duplicate: rapid.Bool().Draw(t, "dup"),
			Payload: []byte(text.Draw(t, "payload")), Properties: &packets.Properties{},
		}
		if rapid.Bool().Draw(t, "properties") {
			*want.Properties = packets.Properties{
				PayloadFormat: &format, MessageExpiry: &expiry,
				SubscriptionIdentifier: &subscription, ContentType: text.Draw(t, "type"),
				ResponseTopic:   text.Draw(t, "response"),
				CorrelationData: []byte(text.Draw(t, "correlation")),
			}
			for range rapid.IntRange(0, 6).Draw(t, "users") {
				want.Properties.User = append(want.Properties.User,
					packets.User{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
			}
		}
		var encoded bytes.Buffer
		if _, err := want.WriteTo(&encoded); err != nil {
			t.Fatal(err)
		}
		header, size, err := peekHeader(bufio.NewReader(bytes.NewReader(encoded.Bytes())), 1<<20)
		if err != nil || size != encoded.Len() {
			t.Fatal(err, size, encoded.Len())
		}
		got, err := parsePublish(encoded.Bytes(), header)
		if err != nil {
			t.Fatal(err)
		}
		if got.Redelivered != want.Duplicate || want.QoS == 1 && got.PacketID != want.PacketID ||
			want.QoS == 0 && got.PacketID != 0 {
			t.Fatalf("%+v\n%+v", got, want)
		}
		read := got.Packet()
		// parsePublish skips the last one
		want.PacketID, want.Duplicate, want.Properties.SubscriptionIdentifier = 0, false, nil
		for _, p := range []*packets.Publish{read, want} {
			if len(p.Properties.CorrelationData) == 0 {
				p.Properties.CorrelationData = nil // paho's encoder leaves an empty one out
			}
			if len(p.Properties.User) == 0 {
				p.Properties.User = nil
			}
			if len(p.Payload) == 0 {
				p.Payload = nil
			}
		}
		if !reflect.DeepEqual(read, want) {
			t.Fatalf("%+v\n%+v", read, want)
		}
	})
}

// A message keeps only its last maxUserProperties user properties. Those that a broker stamps on it
// come last.
func TestUserPropertiesAreBounded(t *testing.T) {
	publish := &packets.Publish{Topic: "t", QoS: 1, PacketID: 9, Properties: &packets.Properties{}}
	for i := range 3 * maxUserProperties {
		publish.Properties.User = append(publish.Properties.User,
			packets.User{Key: "k", Value: strconv.Itoa(i)})
	}
	packet := AppendPublish(nil, publish)
	header, size, err := peekHeader(bufio.NewReader(bytes.NewReader(packet)), 1<<20)
	if err != nil || size != len(packet) {
		t.Fatal(err, size)
	}
	got, err := parsePublish(packet, header)
	if err != nil {
		t.Fatal(err)
	}
	user := got.Properties.User
	if len(user) != maxUserProperties || cap(user) > 3*maxUserProperties ||
		user[len(user)-1].Value != strconv.Itoa(3*maxUserProperties-1) {
		t.Errorf("%d kept, room for %d, the last is %q", len(user), cap(user),
			user[len(user)-1].Value)
	}
}

// FuzzParsePublish: no input makes the decoder panic, or return more bytes than the packet has.
func FuzzParsePublish(f *testing.F) {
	expiry := uint32(7)
	f.Add(AppendPublish(nil, &packets.Publish{
		Topic: "t", QoS: 1, PacketID: 9, Payload: []byte("x"),
		Properties: &packets.Properties{
			ResponseTopic: "r", CorrelationData: []byte("c"), MessageExpiry: &expiry,
			User: []packets.User{{Key: "k", Value: "v"}},
		},
	}))
	f.Add([]byte{0x30, 3, 0, 1, 't'})
	f.Fuzz(func(t *testing.T, packet []byte) {
		header, size, err := peekHeader(bufio.NewReader(bytes.NewReader(packet)), 1<<20)
		if err != nil || size > len(packet) || packet[0]>>4 != packets.PUBLISH {
			return
		}
		p, err := parsePublish(packet[:size], header)
		if err == nil && 2+len(p.Topic)+len(p.Payload) > size {
			t.Errorf("%+v of %d bytes", p, size)
		}
	})
}

// PUBACKs leave in the order of arrival, whatever the order in which messages are done.
func TestPubacksLeaveInOrderOfArrival(t *testing.T) {
	conn, far := connected(t, &packets.Properties{}, Receiver{Publish: func(Message) {}})
	acks := NewAcks(conn)
	if _, err := io.ReadFull(far, make([]byte, 2)); err != nil { // PINGREQ
		t.Fatal(err)
	}
	var numbers []uint64
	for id := uint16(1); id <= 3; id++ {
		numbers = append(numbers, acks.Arrived(id))
	}
	for _, i := range []int{2, 0, 1, 1} {
		if err := acks.Done(numbers[i]); err != nil {
			t.Fatal(err)
		}
	}
	for id := byte(1); id <= 3; id++ {
		got := make([]byte, 4)
		if _, err := io.ReadFull(far, got); err != nil ||
			!bytes.Equal(got, []byte{0x40, 2, 0, id}) {
			t.Fatalf("%x, %v", got, err)
		}
	}
	_ = far.Close()
	conn.Close()
}

// fakeBroker answers CONNECT, then does what the test wants.
func fakeBroker(t *testing.T, properties *packets.Properties,
	then func(net.Conn, *bufio.Reader),
) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		defer func() { _ = far.Close() }()
		reader := bufio.NewReader(far)
		if _, err := ReadPacket(reader, 1<<20); err != nil {
			return
		}
		connack := &packets.Connack{Properties: properties}
		if _, err := connack.WriteTo(far); err != nil {
			return
		}
		then(far, reader)
	}()
	return near
}

// The Publisher calls done exactly once for each message, also if the connection ends before its
// PUBACK.
func TestPublisherCallsDoneOncePerMessage(t *testing.T) {
	const acknowledged = 50
	network := fakeBroker(t, &packets.Properties{}, func(conn net.Conn, reader *bufio.Reader) {
		for n := 0; n < acknowledged; {
			packet, err := ReadPacket(reader, 1<<20)
			if err != nil {
				return
			}
			if publish, ok := packet.Content.(*packets.Publish); ok {
				n++
				puback := &packets.Puback{
					PacketID:   publish.PacketID,
					ReasonCode: ReasonNoMatchingSubscriber, Properties: &packets.Properties{},
				}
				if _, err := puback.WriteTo(conn); err != nil {
					return
				}
			}
		}
	})
	p, err := NewPublisher(t.Context(), network, &packets.Connect{ClientID: "c", KeepAlive: 30}, 80)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	calls, lost := map[int]int{}, 0
	sent := 0
	for i := range 200 {
		err := p.Publish(t.Context(), &packets.Publish{Topic: "t"}, func(reason byte, err error) {
			mu.Lock()
			defer mu.Unlock()
			calls[i]++
			if err != nil {
				lost++
			} else if reason != ReasonNoMatchingSubscriber {
				t.Errorf("reason 0x%02X", reason)
			}
		})
		if err != nil {
			break
		}
		sent++
	}
	<-p.Done()
	mu.Lock()
	defer mu.Unlock()
	if len(calls) != sent || sent-lost != acknowledged {
		t.Errorf("%d sent, done called for %d, %d lost", sent, len(calls), lost)
	}
	for i, n := range calls {
		if n != 1 {
			t.Errorf("message %d: done was called %d times", i, n)
		}
	}
}

// Publish refuses a message above the broker's Maximum Packet Size. It waits while as many messages
// are in flight as the Receive Maximum allows.
func TestPublisherRespectsTheBroker(t *testing.T) {
	limit, window := uint32(100), uint16(2)
	network := fakeBroker(t, &packets.Properties{
		MaximumPacketSize: &limit,
		ReceiveMaximum:    &window,
	}, func(_ net.Conn, reader *bufio.Reader) {
		_, _ = io.Copy(io.Discard, reader)
	})
	p, err := NewPublisher(t.Context(), network, &packets.Connect{ClientID: "c", KeepAlive: 30}, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Abort()
	nothing := func(byte, error) {}
	if err := p.Publish(t.Context(), &packets.Publish{Topic: "t", Payload: make([]byte, 100)},
		nothing); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	for range window {
		if err := p.Publish(t.Context(), &packets.Publish{Topic: "t"}, nothing); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Publish(ctx, &packets.Publish{Topic: "t"}, nothing); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("beyond the Receive Maximum: %v", err)
	}
}

// A Publisher ends with ErrSilent if nothing arrives from the broker for half the keep-alive time.
func TestPublisherNoticesSilence(t *testing.T) {
	network := fakeBroker(t, &packets.Properties{},
		func(_ net.Conn, reader *bufio.Reader) { _, _ = io.Copy(io.Discard, reader) })
	p, err := NewPublisher(t.Context(), network, &packets.Connect{ClientID: "c", KeepAlive: 1}, 80)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if !errors.Is(p.Err(), ErrSilent) {
		t.Errorf("%v", p.Err())
	}
}

// Flush itself writes, so it blocks while the broker does not read. Stop ends this wait, and done
// is called for each message.
func TestStopEndsAFlushThatWaits(t *testing.T) {
	stuck := make(chan struct{})
	network := fakeBroker(t, &packets.Properties{}, func(net.Conn, *bufio.Reader) { <-stuck })
	p, err := NewPublisher(t.Context(), network, &packets.Connect{ClientID: "c"}, 80)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	if err := p.Publish(t.Context(), &packets.Publish{Topic: "t"},
		func(_ byte, err error) { ended <- err }); err != nil {
		t.Fatal(err)
	}
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		p.Flush()
	}()
	for sending := false; !sending; runtime.Gosched() {
		p.mu.Lock()
		sending = p.sending
		p.mu.Unlock()
	}
	p.Stop()
	<-flushed
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("done got %v", err)
	}
	<-p.Done()
	close(stuck)
}
