package sdk

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// wire records what goes over the sockets of one peer, in order.
type wire struct {
	mu       sync.Mutex
	changed  chan struct{}
	in, out  []*packets.Publish
	connects []*packets.Connect
	connacks []*packets.Connack
	subs     []*packets.Subscribe
	seen     map[string]bool // the notifications that are in field in, as text
	// number of notifications that the store sent again; field in does not have them
	repeats int
}

// repeats reports whether the store may repeat notifications.
func repeats() bool { return os.Getenv("HOLDFAST_REPEATS") == "1" }

// addIncomingLocked records a message, but not a notification that came before. w.mu must be held.
func (w *wire) addIncomingLocked(p *packets.Publish) {
	if strings.HasPrefix(p.Topic, "clients/statestore/") {
		key := p.Topic + " " + string(p.Payload)
		for _, u := range p.Properties.User {
			key += " " + u.Value
		}
		if w.seen[key] {
			if !p.Duplicate { // DUP: the broker itself repeats a message that has no PUBACK
				w.repeats++
			}
			return
		}
		w.seen[key] = true
	}
	w.in = append(w.in, p)
}

// checkRepeats fails the test when notifications came twice although the leader never changed.
func (w *wire) checkRepeats(t *testing.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.repeats > 0 && !repeats() {
		t.Errorf("%d notifications came twice, and the leader did not change", w.repeats)
	}
}

// stream cuts one direction of a connection into packets.
type stream struct {
	w   *wire
	out bool
	buf []byte
}

// feed adds bytes to the stream, and records every packet that is complete.
func (s *stream) feed(b []byte) {
	s.buf = append(s.buf, b...)
	for {
		n, size := binary.Uvarint(s.buf[min(1, len(s.buf)):]) // as MQTT's variable byte integers
		if size <= 0 || uint64(len(s.buf)) < 1+uint64(size)+n {
			return
		}
		total := 1 + size + int(n)
		cp, err := packets.ReadPacket(bytes.NewReader(s.buf[:total]))
		s.buf = s.buf[total:]
		if err == nil {
			s.w.add(cp, s.out)
		}
	}
}

func (w *wire) add(cp *packets.ControlPacket, out bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch p := cp.Content.(type) {
	case *packets.Publish:
		if out {
			w.out = append(w.out, p)
		} else {
			w.addIncomingLocked(p)
		}
	case *packets.Connect:
		w.connects = append(w.connects, p)
	case *packets.Connack:
		w.connacks = append(w.connacks, p)
	case *packets.Subscribe:
		w.subs = append(w.subs, p)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits until ok, which is called with the wire locked, says so.
func (w *wire) until(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	for {
		w.mu.Lock()
		done, changed := ok(), w.changed
		w.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, context.Cause(ctx))
		}
	}
}

// reply waits for the reply to the last request with this payload. It returns
// both, and the index of the reply in w.in.
func (w *wire) reply(ctx context.Context, t *testing.T, payload string) (req, rep *packets.Publish,
	at int,
) {
	t.Helper()
	w.until(ctx, t, "the reply on the wire", func() bool {
		req = nil
		for i := len(w.out) - 1; i >= 0 && req == nil; i-- {
			if o := w.out[i]; o.Topic == invokeTopic && string(o.Payload) == payload {
				req = o
			}
		}
		if req == nil {
			return false
		}
		for i, p := range w.in {
			if p.Topic == req.Properties.ResponseTopic &&
				string(p.Properties.CorrelationData) == string(req.Properties.CorrelationData) {
				rep, at = p, i
				return true
			}
		}
		return false
	})
	return req, rep, at
}

// received returns what has come in on a topic.
func (w *wire) received(topic string) (l []*packets.Publish) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.in {
		if p.Topic == topic {
			l = append(l, p)
		}
	}
	return l
}

// countLocked returns how many messages have come in on a topic. w.mu must be held.
func (w *wire) countLocked(topic string) (count int) {
	for _, p := range w.in {
		if p.Topic == topic {
			count++
		}
	}
	return count
}

// tapConn copies both directions to a wire. It is a sync.Locker because paho
// writes a packet in several pieces and locks such connections.
type tapConn struct {
	net.Conn
	sync.Mutex
	in, out stream
	deaf    atomic.Bool // what comes in is thrown away
}

func (c *tapConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if c.deaf.Load() && err == nil {
			continue
		}
		c.in.feed(p[:n])
		return n, err
	}
}

func (c *tapConn) Write(p []byte) (int, error) {
	c.out.feed(p)
	return c.Conn.Write(p)
}
