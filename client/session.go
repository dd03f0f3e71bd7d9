package client

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/backoff"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
)

// session is one connection to the broker. It begins with a clean start and has no session expiry,
// so nothing on the broker outlives it.
type session struct {
	deliver func(*mqttconn.Publish) // handles a reply or a notification
	// markSent marks a request as sent. It returns no message if the request must not be sent any
	// more. again says that an earlier copy may have reached the store. markUnreceived is called
	// when the broker had no subscriber for the request, and says whether to send it again.
	markSent        func(*call) (publish *mqttconn.Publish, again bool)
	markUnreceived  func(waiting *call, again bool) (goOn bool)
	conn            *mqttconn.Conn
	brokerMaxPacket int // bytes: the broker's Maximum Packet Size
	acks            *mqttconn.Acks
	began           time.Time
	ctx             context.Context
	cancel          context.CancelFunc
	working         sync.WaitGroup // the goroutines of the session, which close waits for

	// free packet ids; the total is the number of requests that may be unacknowledged: Receive
	// Maximum, at most maxWindow
	ids chan uint16
	// watchSyncs is the number of running goroutines of syncWatchLocked, by what they watch.
	// Client.mu guards it.
	watchSyncs map[subject]int
	wake       chan struct{} // says that queue is not empty; has room for one

	encoded []byte // buffer for the packet that is being sent; only sendAll uses it

	mu     sync.Mutex
	queue  []*call  // the requests that wait to be sent, in order
	flight []flight // the unacknowledged requests, by packet id
}

// flight is a request that the broker has not acknowledged. call is nil if no request has the
// packet id.
type flight struct {
	call  *call
	again bool // an earlier copy was sent, too, and may have reached the store
}

const (
	// maxReceivedPacket is the size in bytes of the largest packet that is received. A larger one
	// ends the session.
	maxReceivedPacket = 64 << 20
	// maxWindow bounds the requests that the broker has not acknowledged.
	maxWindow = 4096
)

// connect connects to one of the brokers and subscribes. The broker keeps nothing of the previous
// session, so resume sends the pending requests again.
func (c *Client) connect(ctx context.Context) (*session, error) {
	network, err := c.dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		deliver: c.deliver, markSent: c.markSent, markUnreceived: c.markUnreceived,
		began: time.Now(), wake: make(chan struct{}, 1), watchSyncs: make(map[subject]int),
	}
	login := mqttconn.Login{
		Username: c.config.Username, Password: func() []byte { return c.config.Password },
		KeepAlive: c.config.KeepAlive,
	}
	connect, receiveMaximum := login.Packet(c.config.ClientID, true), uint16(math.MaxUint16)
	connect.Properties.ReceiveMaximum = &receiveMaximum
	conn, connack, err := mqttconn.Connect(ctx, network, connect, mqttconn.Receiver{
		MaxPacket: maxReceivedPacket, Publish: s.received, Puback: s.acknowledged,
		CoalescingDelay: c.coalescingDelay,
	})
	if err != nil {
		return nil, err
	}
	s.conn, s.acks, s.brokerMaxPacket = conn, mqttconn.NewAcks(conn), conn.MaxPacket()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	window := uint16(maxWindow)
	if limit := connack.Properties.ReceiveMaximum; limit != nil {
		window = min(window, *limit)
	}
	s.ids, s.flight = make(chan uint16, window), make([]flight, window+1)
	for id := uint16(1); id <= window; id++ {
		s.ids <- id
	}
	conn.Start()
	err = conn.Subscribe(ctx,
		packets.SubOptions{Topic: c.responseTopic, QoS: 1},
		packets.SubOptions{Topic: topics.NotificationPrefix(c.config.ClientID) + "#", QoS: 1})
	if err != nil {
		s.close()
		return nil, err
	}
	s.working.Go(s.sendAll)
	s.working.Go(func() { c.renewWatches(s) })
	return s, nil
}

// coalescingDelay returns the coalescing delay: how long replies may accumulate before they are
// read. With many pending requests, fewer wake-ups save more than the delay costs.
func (c *Client) coalescingDelay() time.Duration {
	const (
		many  = 16
		most  = 5 * time.Millisecond
		share = 8 // the delay is at most 1/share of the average turnaround
	)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) < many {
		return 0
	}
	return min(most, c.turnaround/share)
}

// wait blocks until the session ends and returns the cause, or ErrClosed if the context ends first.
func (s *session) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ErrClosed
	case <-s.conn.Done():
		return s.conn.Err()
	}
}

func (s *session) close() {
	s.cancel()
	s.conn.Close()
	s.working.Wait()
}

// received takes a reply or a notification. It must not block: nothing else is read meanwhile.
func (s *session) received(m mqttconn.Message) {
	s.deliver(m.Publish)
	if m.QoS == 1 {
		// an error means that the connection has ended; the reader notices it, too
		_ = s.acks.Done(s.acks.Arrived(m.PacketID))
	}
}

// deliver hands a reply to its call, or a notification to its watchers.
func (c *Client) deliver(p *mqttconn.Publish) {
	if p.Topic == c.responseTopic {
		c.handleReply(p)
	} else if rest, ok := strings.CutPrefix(p.Topic, topics.Notifications); ok {
		c.handleNotification(rest, p)
	}
}

// resume makes a session the one that commands use. It sends the pending requests again, in order,
// and a KEYNOTIFY for each watch: the store may have ended the watches with the old connection.
func (c *Client) resume(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.failure = s, nil
	close(c.changed)
	c.changed = make(chan struct{})
	for watched, watchers := range c.watchers.bySubject {
		var established []*Watcher
		for _, w := range watchers {
			if w.established {
				w.gapLocked()
				established = append(established, w)
			}
		}
		c.syncWatchLocked(watched, established)
	}
	for _, waiting := range c.order {
		if waiting.isKeyNotify {
			c.replaceCorrelationLocked(waiting)
		}
		waiting.unreceived = moment{}
		s.enqueue(waiting)
	}
}

// The store recognises a copy of a request for its message expiry, at most maxRemembered, plus
// dedupMargin. See "Exactly once" in docs/protocol.md.
const (
	maxRemembered = 10 * time.Minute
	dedupMargin   = 2 * time.Minute
)

// mayBeForgotten reports whether the store may have forgotten the request, and would execute a copy
// of it a second time. A call waits no longer than its message expiry. So this is only possible if
// the message expiry exceeds maxRemembered plus dedupMargin, or if the machine was suspended.
func (c *call) mayBeForgotten() bool {
	return c.began.elapsed() > min(c.expiry, maxRemembered)+dedupMargin
}

// renewWatches sends a KEYNOTIFY for each watched subject every WatchRenewal, until the session
// ends: a store with watch.ttl ends watches that are not renewed.
func (c *Client) renewWatches(s *session) {
	ticker := time.NewTicker(c.config.WatchRenewal)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		c.mu.Lock()
		if c.session == s {
			for watched := range c.watchers.bySubject {
				if s.watchSyncs[watched] == 0 { // otherwise a goroutine still sends KEYNOTIFY
					c.syncWatchLocked(watched, nil)
				}
			}
		}
		c.mu.Unlock()
	}
}

// enqueue sends a request after those that were enqueued before.
func (s *session) enqueue(waiting *call) {
	s.mu.Lock()
	s.queue = append(s.queue, waiting)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// withdraw removes a request from the queue, if it is there.
func (s *session) withdraw(waiting *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.queue, waiting); at >= 0 {
		s.queue = slices.Delete(s.queue, at, at+1)
	}
}

// dequeue returns the first request of the queue, and waits for one. It returns nil when the
// session ends.
func (s *session) dequeue() *call {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			first := s.queue[0]
			s.queue[0] = nil
			s.queue = s.queue[1:]
			s.mu.Unlock()
			return first
		}
		s.mu.Unlock()
		select {
		case <-s.ctx.Done():
			return nil
		case <-s.wake:
		}
	}
}

// sendAll sends the enqueued requests, in order, until the session ends. It marks a request as sent
// only once there is a free packet id. So a request that is given up while it waits for a packet id
// is not sent.
func (s *session) sendAll() {
	for {
		var id uint16
		select {
		case <-s.ctx.Done():
			return
		case id = <-s.ids:
		}
		for sent := false; !sent; {
			waiting := s.dequeue()
			if waiting == nil {
				return
			}
			if publish, again := s.markSent(waiting); publish != nil {
				sent = s.send(id, waiting, publish, again)
			}
		}
	}
}

// markSent marks a request as sent and returns its message, and whether it was sent before. It
// returns nil if the caller has stopped waiting for the reply, or if a copy might take effect a
// second time (mayBeForgotten). In the latter case it ends the call with ErrOutcomeUnknown.
func (c *Client) markSent(waiting *call) (publish *mqttconn.Publish, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending[waiting.correlation] != waiting {
		return nil, false
	}
	if waiting.sent && waiting.mayBeForgotten() {
		waiting.finish(answer{err: ErrOutcomeUnknown})
		return nil, false
	}
	again, waiting.sent = waiting.sent, true
	return waiting.publish, again
}

// markUnreceived notes that a copy of a request reached nobody. It was not sent then, unless there
// was a copy before (again). After Config.NoStoreTimeout it gives the request up, and returns
// false: the request must not be sent any more.
func (c *Client) markUnreceived(waiting *call, again bool) (goOn bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !again {
		waiting.sent = false
	}
	if waiting.unreceived.at.IsZero() {
		waiting.unreceived = now()
	}
	limit := c.config.NoStoreTimeout
	if limit <= 0 || waiting.sent || waiting.unreceived.elapsed() <= limit {
		return true
	}
	c.removeLocked(waiting)
	waiting.finish(answer{err: fmt.Errorf("%w: %w: nobody receives requests", ErrNotExecuted,
		ErrNoStore)})
	return false
}

// keptBuffer is the largest size in bytes at which session.encoded is kept for the next request.
const keptBuffer = 64 << 10

// send publishes a request with a packet id. If again is true, an earlier copy may have reached the
// store: a refusal by the broker then leaves the outcome unknown. send returns false if the request
// is too large for the broker. The packet id is then still free.
func (s *session) send(id uint16, waiting *call, publish *mqttconn.Publish, again bool) bool {
	packet := publish.Packet()
	if size, ok := mqttconn.PublishSize(packet); !ok || size > s.brokerMaxPacket {
		outcome := ErrNotExecuted
		if again {
			outcome = ErrOutcomeUnknown
		}
		waiting.finish(answer{err: fmt.Errorf("%w: %w", outcome, mqttconn.ErrTooLarge)})
		return false
	}
	s.mu.Lock()
	s.flight[id] = flight{waiting, again}
	s.mu.Unlock()
	packet.PacketID = id
	s.encoded = mqttconn.AppendPublish(s.encoded[:0], packet)
	// an error means that the session ends, and the next one sends it again
	_ = s.conn.Send(s.encoded)
	if cap(s.encoded) > keptBuffer {
		s.encoded = nil
	}
	return true
}

// resendPause is the pause before a request is sent again because the invoke topic had no
// subscriber, as just after a restart of the broker.
const resendPause = 100 * time.Millisecond

// acknowledged handles a PUBACK, and reports whether its packet id belongs to a request.
func (s *session) acknowledged(id uint16, reason byte) bool {
	s.mu.Lock()
	if int(id) >= len(s.flight) || s.flight[id].call == nil {
		s.mu.Unlock()
		return false
	}
	waiting, again := s.flight[id].call, s.flight[id].again
	s.flight[id] = flight{}
	s.mu.Unlock()
	s.ids <- id // has room: there are as many places as ids
	switch {
	case reason >= 0x80 && again: // an earlier copy may have reached the store
		waiting.finish(answer{err: fmt.Errorf("%w: %w", ErrOutcomeUnknown,
			&refusedError{reason: reason})})
	case reason >= 0x80:
		waiting.finish(answer{err: &refusedError{reason: reason}})
	case reason == mqttconn.ReasonNoMatchingSubscriber:
		if s.markUnreceived(waiting, again) {
			s.working.Go(func() {
				if backoff.Pause(s.ctx, resendPause) {
					s.enqueue(waiting)
				}
			})
		}
	default:
		waiting.taken.Store(true)
	}
	return true
}
