package mqttconn

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/testcert"
)

// The delay is paid for each read of the network, not for each TLS record: a broker writes one record for each message.
func TestCoalescingDelayIsPaidOnceForManyTLSRecords(t *testing.T) {
	const messages = 1000
	authority := testcert.NewAuthority(t)
	authority.Issue("broker", "127.0.0.1")
	certificate, err := tls.LoadX509KeyPair(authority.File("broker.crt"), authority.File("broker.key"))
	if err != nil {
		t.Fatal(err)
	}
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
			conn := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{certificate}})
			defer func() { _ = conn.Close() }()
			packet := AppendPublish(nil, &packets.Publish{Topic: "t", QoS: 1, PacketID: 1, Payload: []byte("v")})
			for range messages {
				if _, err := conn.Write(packet); err != nil {
					return err
				}
			}
			_, err = conn.Read(make([]byte, 1)) // the client closes
			if err != nil {
				return nil
			}
			return err
		}()
	}()
	dialer := &Dialer{Addresses: []Address{{Host: listener.Addr().String(), TLS: true}}, Timeout: 10 * time.Second, TLS: &tls.Config{InsecureSkipVerify: true}}
	network, err := dialer.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	received, delays := 0, 0
	all := make(chan struct{})
	conn := NewConn(network, Receiver{
		MaxPacket: 1 << 20,
		Publish: func(Message) {
			if received++; received == messages {
				close(all)
			}
		},
		Rest: func() time.Duration {
			delays++
			return 5 * time.Millisecond
		},
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = conn.Read(make([]byte, 1)) // ends with the connection
	}()
	<-all
	_ = conn.Close()
	<-ended
	if err := <-served; err != nil {
		t.Error(err)
	}
	if most := messages / 4; delays > most {
		t.Errorf("%d delays for %d records, want at most %d", delays, messages, most)
	}
}
