package mqttconn

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/log"
)

// Pinger keeps a connection of paho's client alive. Unlike paho's own, it takes any byte on a Conn as a sign of life. While
// Receiver.Publish blocks the reader, the broker does not count as silent. It notices silence also while the write of a PINGREQ blocks.
type Pinger struct {
	received atomic.Uint64
}

// Run implements paho.Pinger.
func (p *Pinger) Run(ctx context.Context, conn net.Conn, keepAlive uint16) error {
	if keepAlive == 0 {
		return nil
	}
	ticker := time.NewTicker(time.Duration(keepAlive) * time.Second / 2)
	defer ticker.Stop()
	var writing sync.Mutex
	var pings sync.WaitGroup
	defer pings.Wait()
	received := p.received.Load
	if wrapped, ok := conn.(*Conn); ok {
		received = func() uint64 { return p.received.Load() + wrapped.SignsOfLife() }
	}
	for {
		last := received()
		pings.Go(func() {
			if !writing.TryLock() {
				return // the last PINGREQ is still being written
			}
			defer writing.Unlock()
			_, _ = packets.NewControlPacket(packets.PINGREQ).WriteTo(conn) // the reader sees a broken connection, too
		})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		blocked := false
		if wrapped, ok := conn.(*Conn); ok {
			blocked = wrapped.Blocked()
		}
		if received() == last && !blocked {
			if wrapped, ok := conn.(*Conn); ok {
				wrapped.Hurry() // ends a blocked write, for which pings.Wait waits
			}
			return ErrSilent
		}
	}
}

// PacketReceived implements paho.Pinger.
func (p *Pinger) PacketReceived() { p.received.Add(1) }

// PingResp implements paho.Pinger.
func (p *Pinger) PingResp() { p.received.Add(1) }

// PacketSent implements paho.Pinger.
func (p *Pinger) PacketSent() {}

// SetDebug implements paho.Pinger.
func (p *Pinger) SetDebug(log.Logger) {}
