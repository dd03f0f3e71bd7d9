package main

import (
	"net"
	"sync/atomic"
	"time"
)

// delayProxy is a proxy that passes connections on to the broker, each byte after a delay.
type delayProxy struct {
	broker string
	delay  atomic.Int64 // a time.Duration
}

func newDelayProxy(listen, broker string) (*delayProxy, error) {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	p := &delayProxy{broker: broker}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go p.connect(near)
		}
	}()
	return p, nil
}

func (p *delayProxy) setDelay(d time.Duration) { p.delay.Store(int64(d)) }

func (p *delayProxy) connect(near net.Conn) {
	far, err := net.DialTimeout("tcp", p.broker, 5*time.Second)
	if err != nil {
		_ = near.Close()
		return
	}
	go p.pass(near, far)
	p.pass(far, near)
}

// chunk is the data of one read, and the time at which it is to be written to the other side.
type chunk struct {
	data []byte
	due  time.Time
}

// pass passes on what comes from one side to the other until one of them ends.
func (p *delayProxy) pass(from, to net.Conn) {
	chunks := make(chan chunk, 64)
	go func() {
		defer close(chunks)
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				chunks <- chunk{buffer[:n], time.Now().Add(time.Duration(p.delay.Load()))}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range chunks {
		time.Sleep(time.Until(c.due))
		if _, err := to.Write(c.data); err != nil {
			break
		}
	}
	_ = from.Close()
	_ = to.Close()
	for range chunks {
		// the reader may wait for room in the channel; it ends because its connection is closed
	}
}
