package mqttconn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The encoder writes what paho's decoder reads, and its size is what PublishSize says.
func TestAppendPublish(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z]{0,200}`)
		p := &packets.Publish{
			Topic: "t" + text.Draw(t, "topic"), QoS: 1, PacketID: rapid.Uint16Range(1, 65535).Draw(t, "id"),
			Retain: rapid.Bool().Draw(t, "retain"), Duplicate: rapid.Bool().Draw(t, "dup"),
			Payload:    bytes.Repeat([]byte("x"), rapid.IntRange(0, 20_000).Draw(t, "payload")),
			Properties: &packets.Properties{ContentType: text.Draw(t, "type"), ResponseTopic: text.Draw(t, "response")},
		}
		if rapid.Bool().Draw(t, "more") {
			format, expiry := byte(1), uint32(7)
			p.Properties.PayloadFormat, p.Properties.MessageExpiry = &format, &expiry
			p.Properties.CorrelationData = []byte(text.Draw(t, "correlation"))
			p.Properties.User = []packets.User{{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")}, {Key: "a", Value: "b"}}
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
		if got.Topic != p.Topic || got.PacketID != p.PacketID || !bytes.Equal(got.Payload, p.Payload) || got.Retain != p.Retain || got.Duplicate != p.Duplicate ||
			!bytes.Equal(got.Properties.CorrelationData, p.Properties.CorrelationData) || len(got.Properties.User) != len(p.Properties.User) ||
			got.Properties.ResponseTopic != p.Properties.ResponseTopic || got.Properties.ContentType != p.Properties.ContentType {
			t.Fatalf("%+v\n%+v", got, p)
		}
	})
	if _, ok := PublishSize(&packets.Publish{Topic: strings.Repeat("t", 65_536)}); ok {
		t.Error("a topic that cannot be encoded")
	}
}

// A header that claims more than the limit costs nothing.
func TestReadPacketIsBounded(t *testing.T) {
	for _, header := range []string{"\x30\xff\xff\xff\x7f", "\x30\xff\xff\xff\xff\x0f", "\x30\x80\x80\x80\x80\x01", "\x30\x81\x08"} {
		reader := bufio.NewReader(strings.NewReader(header + strings.Repeat("x", 100)))
		if _, err := ReadPacket(reader, 1024); err == nil {
			t.Errorf("%x was read", header)
		}
		var guard packetGuard
		guard.limit = 1024
		if err := guard.check([]byte(header)); err == nil {
			t.Errorf("%x passed the guard", header)
		}
	}
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]Address{
		"mqtt://h": {"h:1883", false}, "mqtts://h": {"h:8883", true}, "mqtt://h:1": {"h:1", false}, "tcp://h:1/": {"h:1", false},
		"ssl://h": {"h:8883", true}, "h:1883": {"h:1883", false}, "[::1]:1883": {"[::1]:1883", false}, "mqtt://[::1]": {"[::1]:1883", false}, "mqtts://mq1": {"mq1:8883", true},
	} {
		if got, err := ParseAddress(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "h", ":1883", "h:", "ftp://h", "mqtt://", "mqtt://h/x", "mqtt://u:p@h", "mqtt://h:x", "mqtt://h:99999", "h:0", "localhost:abc"} {
		if got, err := ParseAddress(text); !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// A reader that holds too much stops reading, and goes on when it lets go.
func TestConnPushesBack(t *testing.T) {
	near, far := net.Pipe()
	conn := NewConn(near, 1<<20, 1000)
	defer func() { _ = conn.Close() }()
	packet := AppendPublish(nil, &packets.Publish{Topic: "t", QoS: 1, PacketID: 1, Payload: make([]byte, 900)})
	written := make(chan int, 10)
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range 4 {
			if _, err := far.Write(packet); err != nil {
				return
			}
			written <- i
		}
	})
	defer writing.Wait()
	defer func() { _ = far.Close() }()
	buffer := make([]byte, len(packet))
	for range 2 { // the second takes it over the limit
		if _, err := io.ReadFull(conn, buffer); err != nil {
			t.Fatal(err)
		}
	}
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(conn, buffer)
		read <- err
	}()
	for !conn.Blocked() {
		<-time.After(time.Millisecond)
	}
	conn.Release(conn.TakeSize())
	if err := <-read; err != nil {
		t.Error(err)
	}
}

// PUBACKs leave in the order of arrival, whatever the order in which messages are done.
func TestAcks(t *testing.T) {
	near, far := net.Pipe()
	conn := NewConn(near, 1<<20, 1000)
	acks := NewAcks(conn)
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
		if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, []byte{0x40, 2, 0, id}) {
			t.Fatalf("%x, %v", got, err)
		}
	}
	_ = far.Close()
	_ = conn.Close()
}

// fakeBroker answers CONNECT, then does what the test wants.
func fakeBroker(t *testing.T, properties *packets.Properties, then func(net.Conn, *bufio.Reader)) net.Conn {
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

// Every message that was sent is told of exactly once, also when the connection ends first.
func TestPublisherTellsOfEachMessage(t *testing.T) {
	const acknowledged = 50
	network := fakeBroker(t, &packets.Properties{}, func(conn net.Conn, reader *bufio.Reader) {
		for n := 0; n < acknowledged; {
			packet, err := ReadPacket(reader, 1<<20)
			if err != nil {
				return
			}
			if publish, ok := packet.Content.(*packets.Publish); ok {
				n++
				puback := &packets.Puback{PacketID: publish.PacketID, ReasonCode: ReasonNoMatchingSubscriber, Properties: &packets.Properties{}}
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
	told, lost := map[int]int{}, 0
	sent := 0
	for i := range 200 {
		err := p.Publish(t.Context(), &packets.Publish{Topic: "t"}, func(reason byte, err error) {
			mu.Lock()
			defer mu.Unlock()
			told[i]++
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
	if len(told) != sent || sent-lost != acknowledged {
		t.Errorf("%d sent, %d told of, %d lost", sent, len(told), lost)
	}
	for i, n := range told {
		if n != 1 {
			t.Errorf("message %d: told of %d times", i, n)
		}
	}
}

func TestPublisherRespectsTheBroker(t *testing.T) {
	limit, window := uint32(100), uint16(2)
	network := fakeBroker(t, &packets.Properties{MaximumPacketSize: &limit, ReceiveMaximum: &window}, func(_ net.Conn, reader *bufio.Reader) {
		_, _ = io.Copy(io.Discard, reader)
	})
	p, err := NewPublisher(t.Context(), network, &packets.Connect{ClientID: "c", KeepAlive: 30}, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Abort()
	nothing := func(byte, error) {}
	if err := p.Publish(t.Context(), &packets.Publish{Topic: "t", Payload: make([]byte, 100)}, nothing); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	for range window {
		if err := p.Publish(t.Context(), &packets.Publish{Topic: "t"}, nothing); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Publish(ctx, &packets.Publish{Topic: "t"}, nothing); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beyond the Receive Maximum: %v", err)
	}
}

func TestPublisherNoticesSilence(t *testing.T) {
	network := fakeBroker(t, &packets.Properties{}, func(_ net.Conn, reader *bufio.Reader) { _, _ = io.Copy(io.Discard, reader) })
	p, err := NewPublisher(t.Context(), network, &packets.Connect{ClientID: "c", KeepAlive: 1}, 80)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if !errors.Is(p.Err(), ErrSilent) {
		t.Errorf("%v", p.Err())
	}
}
