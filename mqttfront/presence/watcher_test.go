package presence

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
	"holdfast/internal/mqttconn/mqtttest"
	"holdfast/mqttfront/broker"
)

type source struct{}

func (source) Filters() []string                                { return []string{"events"} }
func (source) Read(string, []byte, bool) (event Event, ok bool) { return event, false }

// A broker that accepts connections and refuses the subscription is not asked for ever: the next
// address may work.
func TestWatcherTriesTheNextBrokerAfterARefusedSubscription(t *testing.T) {
	refusing, other := listen(t), listen(t)
	go func() {
		conn, err := refusing.Accept()
		if err != nil {
			return
		}
		mqtttest.Serve(conn, func(packet *packets.ControlPacket) (packets.Packet, bool) {
			if subscribe, ok := packet.Content.(*packets.Subscribe); ok {
				return &packets.Suback{
					PacketID: subscribe.PacketID, Reasons: []byte{0, 0x87},
					Properties: &packets.Properties{},
				}, true
			}
			return nil, true
		})
	}()
	addresses := make([]mqttconn.Address, 2)
	for i, l := range []net.Listener{refusing, other} {
		var err error
		if addresses[i], err = mqttconn.ParseAddress("mqtt://" + l.Addr().String()); err != nil {
			t.Fatal(err)
		}
	}
	dialer := &mqttconn.Dialer{Addresses: addresses, Timeout: 10 * time.Second}
	w := New(Config{
		Cluster: "c", Node: "n1", Wall: func() int64 { return 0 },
		Login: mqttconn.Login{
			Dialer: dialer, KeepAlive: 10 * time.Second, Timeout: 10 * time.Second,
		},
		Log:           slog.New(slog.DiscardHandler),
		SessionExpiry: time.Minute, Interval: time.Second,
	}, source{})
	if err := w.WatchDisconnects(t.Context(), func(broker.Disconnect) {}); err == nil {
		t.Fatal("the subscription was accepted")
	}
	conn, err := dialer.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.RemoteAddr().String(); got != other.Addr().String() {
		t.Errorf("the next connection is to %s, want %s", got, other.Addr())
	}
	_ = conn.Close()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
