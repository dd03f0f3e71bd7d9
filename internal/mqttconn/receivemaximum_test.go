package mqttconn

import (
	"bufio"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// acknowledgeWindows is a broker that acknowledges window messages at a time, in one write, until
// the connection is closed.
func acknowledgeWindows(conn net.Conn, window uint16) {
	if _, err := packets.ReadPacket(conn); err != nil {
		return
	}
	if _, err := (&packets.Connack{Properties: &packets.Properties{ReceiveMaximum: &window}}).WriteTo(conn); err != nil {
		return
	}
	var pubacks []byte
	for {
		packet, err := packets.ReadPacket(conn)
		if err != nil {
			return
		}
		if p, ok := packet.Content.(*packets.Publish); ok {
			pubacks = append(pubacks, packets.PUBACK<<4, 2, byte(p.PacketID>>8), byte(p.PacketID))
		}
		if len(pubacks) == 4*int(window) {
			if _, err := conn.Write(pubacks); err != nil {
				return
			}
			pubacks = pubacks[:0]
		}
	}
}

// While a message waits for a packet id, reads are not delayed to let PUBACKs gather. With a
// Receive Maximum of 20, which is Mosquitto's default, one ackDelay for each 20 messages would
// allow only 4,000 messages a second.
func TestSmallReceiveMaximumDoesNotWaitForPubacksToGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window, windows = 20, 100
		near, far := net.Pipe()
		var broker sync.WaitGroup
		broker.Go(func() { acknowledgeWindows(far, window) })
		p, err := NewPublisher(t.Context(), near, &packets.Connect{ClientID: "c"}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for range window * windows {
			if err := p.Publish(t.Context(), &packets.Publish{Topic: "t"},
				func(byte, error) {}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > windows*ackDelay/10 {
			t.Errorf("%d windows of %d messages took %v", windows, window, took)
		}
		p.Abort()
		_ = far.Close()
		broker.Wait()
	})
}

// A broker must not announce a Receive Maximum of 0: nothing could ever be published.
func TestReceiveMaximumOfZeroIsRefused(t *testing.T) {
	zero := uint16(0)
	network := fakeBroker(t, &packets.Properties{ReceiveMaximum: &zero},
		func(net.Conn, *bufio.Reader) {})
	if p, err := NewPublisher(t.Context(), network, &packets.Connect{ClientID: "c"},
		80); err == nil {
		p.Abort()
		t.Error("accepted")
	}
}
