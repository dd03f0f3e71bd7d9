package mqttfront

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
)

// keepingBroker keeps every session, whatever ends it, with one old request in it.
type keepingBroker struct{ connects chan packets.Connect }

func (b *keepingBroker) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	go b.serve(far)
	return near, nil
}

func (b *keepingBroker) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for reader := bufio.NewReader(conn); ; {
		packet, err := mqttconn.ReadPacket(reader, 1<<20)
		if err != nil {
			return
		}
		connect, ok := packet.Content.(*packets.Connect)
		if !ok {
			continue
		}
		b.connects <- *connect
		// Before the CONNACK: no broker does that, but what comes right behind it may be read before the node has looked at the CONNACK.
		var sent bytes.Buffer
		if !connect.CleanStart {
			sent.Write(mqttconn.AppendPublish(nil, &packets.Publish{Topic: InvokeTopic, QoS: 1, PacketID: 1, Payload: []byte(del), Properties: &packets.Properties{
				ResponseTopic: "clients/c/r", CorrelationData: []byte("0123456789abcdef"),
			}}))
		}
		if _, err := (&packets.Connack{SessionPresent: !connect.CleanStart, Properties: &packets.Properties{}}).WriteTo(&sent); err != nil {
			return
		}
		if _, err := conn.Write(sent.Bytes()); err != nil {
			return
		}
	}
}

// A node that may not resume its session ends it by a connection of its own, and begins the next without a clean start, so that the broker
// persists it. Where the broker keeps the old one all the same, nothing in it is taken, and the node asks for a clean start.
func TestSessionThatIsKeptIsNotTaken(t *testing.T) {
	f, _ := newTestFront(t)
	broker := &keepingBroker{connects: make(chan packets.Connect, 100)}
	f.world.Dialer = &mqttconn.Dialer{Addresses: []mqttconn.Address{{Host: "broker:1883"}}, Timeout: time.Second, Network: broker.dial}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.receive(ctx) }()
	for i, want := range []struct {
		cleanStart, expires bool
	}{{true, true}, {false, false}, {true, false}} {
		connect := <-broker.connects
		if connect.ClientID != "holdfast-n1-in" || connect.CleanStart != want.cleanStart || (connect.Properties.SessionExpiryInterval == nil) != want.expires {
			t.Errorf("connection %d: %+v", i, connect)
		}
	}
	cancel()
	<-ended
	if f.held.Len() != 0 {
		t.Error("an old request was taken from a session that was ended")
	}
}
