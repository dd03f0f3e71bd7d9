package mqttconn

import (
	"bufio"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// halting is a slow connection: each Read takes 50 ms and returns at most 1000 bytes.
type halting struct{ net.Conn }

func (c halting) Read(p []byte) (int, error) {
	time.Sleep(50 * time.Millisecond)
	return c.Conn.Read(p[:min(len(p), 1000)])
}

// A packet that takes longer than the keep-alive time is no silence, in either direction: its bytes
// are signs of life.
func TestLargePacketOnASlowConnectionIsNoSilence(t *testing.T) {
	const size = 300_000 // bytes, which take 15 s
	t.Run("received", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			go func() { // the broker
				go func() { _, _ = io.Copy(io.Discard, there) }()
				_, _ = there.Write([]byte{0x20, 3, 0, 0, 0})
				_, _ = there.Write(AppendPublish(nil,
					&packets.Publish{
						Topic: "t", QoS: 1, PacketID: 1, Payload: make([]byte, size),
						Properties: &packets.Properties{},
					}))
			}()
			got := make(chan int, 1)
			conn, _, err := Connect(t.Context(), halting{here},
				&packets.Connect{ClientID: "x", KeepAlive: 10, CleanStart: true}, Receiver{
					MaxPacket: 1 << 20, Publish: func(m Message) { got <- len(m.Payload) },
				})
			if err != nil {
				t.Fatal(err)
			}
			conn.Start()
			select {
			case <-got:
			case <-conn.Done():
				t.Error(conn.Err())
			}
			_ = there.Close()
			conn.Close()
		})
	})
	t.Run("sent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			go func() { // the broker
				reader := bufio.NewReader(halting{there})
				for {
					packet, err := ReadPacket(reader, 1<<20)
					if err != nil {
						return
					}
					switch content := packet.Content.(type) {
					case *packets.Connect:
						_, _ = there.Write([]byte{0x20, 3, 0, 0, 0})
					case *packets.Publish:
						_, _ = there.Write([]byte{
							0x40, 2, byte(content.PacketID >> 8),
							byte(content.PacketID),
						})
					}
				}
			}()
			p, err := NewPublisher(t.Context(), here,
				&packets.Connect{ClientID: "x", KeepAlive: 10}, 10)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			if err := p.Publish(t.Context(),
				&packets.Publish{Topic: "t", Payload: make([]byte, size)},
				func(_ byte, err error) { ended <- err }); err != nil {
				t.Fatal(err)
			}
			p.Flush()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			p.Abort()
			time.Sleep(time.Minute) // until the broker's goroutine has ended
		})
	})
}
