package mqttconn

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/testcert"
)

// serverTLS returns a server's TLS configuration. The clients of this file's tests do not verify
// its certificate.
func serverTLS(t *testing.T) *tls.Config {
	t.Helper()
	authority := testcert.NewAuthority(t)
	authority.Issue("broker", "127.0.0.1")
	certificate, err := tls.LoadX509KeyPair(authority.File("broker.crt"),
		authority.File("broker.key"))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}}
}

// What is published after StartRecord is in another TLS record than what was published before it.
func TestStartRecordSeparatesTLSRecords(t *testing.T) {
	near, far := net.Pipe()
	records := make(chan []byte, 10)
	config := serverTLS(t)
	go func() {
		defer close(records)
		conn := tls.Server(far, config)
		defer func() { _ = conn.Close() }()
		if _, err := packets.ReadPacket(conn); err != nil {
			return
		}
		if _, err := (&packets.Connack{Properties: &packets.Properties{}}).WriteTo(
			conn); err != nil {
			return
		}
		for buffer := make([]byte, 64<<10); ; {
			n, err := conn.Read(buffer) // one record
			if err != nil {
				return
			}
			records <- append([]byte(nil), buffer[:n]...)
		}
	}()
	p, err := NewPublisher(t.Context(), tls.Client(near, &tls.Config{InsecureSkipVerify: true}),
		&packets.Connect{ClientID: "c"}, 80)
	if err != nil {
		t.Fatal(err)
	}
	publish := func(topic string) {
		t.Helper()
		if err := p.Publish(t.Context(), &packets.Publish{Topic: topic},
			func(byte, error) {}); err != nil {
			t.Fatal(err)
		}
	}
	p.StartRecord() // does nothing: nothing was published before
	publish("a")
	publish("b")
	p.StartRecord()
	publish("c")
	p.Flush()
	separate := false
	for record := range records { // how many records come before that of "c" does not matter
		if !bytes.Contains(record, []byte("c")) {
			continue
		}
		if separate = true; bytes.ContainsAny(record, "ab") {
			t.Errorf("what was published before StartRecord is in one record with what came after: %q", record)
		}
		break
	}
	if !separate {
		t.Error("the last message did not come")
	}
	p.Abort()
	_ = far.Close()
}

// The delay is paid for each read of the network, not for each TLS record: a broker writes one
// record for each message.
func TestCoalescingDelayIsPaidOnceForManyTLSRecords(t *testing.T) {
	const messages = 1000
	config := serverTLS(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			raw, err := listener.Accept()
			if err != nil {
				return err
			}
			conn := tls.Server(raw, config)
			defer func() { _ = conn.Close() }()
			packet := AppendPublish(nil,
				&packets.Publish{Topic: "t", QoS: 1, PacketID: 1, Payload: []byte("v")})
			for range messages {
				if _, err := conn.Write(packet); err != nil {
					return err
				}
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				return errors.New("the client sent something")
			}
			return nil // the client closed
		}()
	}()
	dialer := &Dialer{
		Addresses: []Address{{Host: listener.Addr().String(), TLS: true}},
		Timeout:   10 * time.Second, TLS: &tls.Config{InsecureSkipVerify: true},
	}
	network, err := dialer.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	received, delays := 0, 0
	all := make(chan struct{})
	conn := newConn(network, Receiver{
		MaxPacket: 1 << 20,
		Publish: func(Message) {
			if received++; received == messages {
				close(all)
			}
		},
		CoalescingDelay: func() time.Duration {
			delays++
			return 5 * time.Millisecond
		},
	})
	conn.workers.Go(conn.flush)
	conn.Start()
	select {
	case <-all:
	case <-conn.Done():
		t.Errorf("the connection ended after %d messages", received)
	}
	conn.fail(ErrClosed)
	conn.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if most := messages / 4; delays > most {
		t.Errorf("%d delays for %d records, want at most %d", delays, messages, most)
	}
}
