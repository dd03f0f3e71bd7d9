package mqttconn

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/eclipse/paho.golang/packets"
)

// request is a PUBLISH or SUBSCRIBE that the broker has not answered.
type request struct {
	answer   byte        // the type of the packet that answers it
	answered chan []byte // gets the reason codes; has room for them
	settled  func()      // called when they come
}

// waiting has the requests of a connection, by packet id. A request stays until it is answered,
// also when nobody waits for it any more: its packet id is in use for as long.
type waiting struct {
	mu       sync.Mutex
	last     uint16 // the last packet id that was used
	requests map[uint16]*request
}

// begin reserves a packet id.
func (w *waiting) begin(answer byte, settled func()) (id uint16, r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for used := true; used; _, used = w.requests[w.last] { // there are more ids than requests
		w.last = max(FirstID, w.last+1)
	}
	r = &request{answer, make(chan []byte, 1), settled}
	w.requests[w.last] = r
	return w.last, r
}

// answer hands an answer over, by the type of its packet. It ignores one to no request.
func (w *waiting) answer(kind byte, id uint16, reasons []byte) {
	w.mu.Lock()
	r, known := w.requests[id]
	if known = known && r.answer == kind; known {
		delete(w.requests, id)
	}
	w.mu.Unlock()
	if known {
		r.answered <- reasons
		r.settled()
	}
}

// call sends a packet and waits for its answer. settled is called if the answer comes, also when
// that is too late for call.
func (c *Conn) call(ctx context.Context, answer byte, settled func(),
	encode func(id uint16) []byte,
) (reasons []byte, err error) {
	id, r := c.waiting.begin(answer, settled)
	packet := encode(id)
	if len(packet) > c.maxPacket {
		return nil, ErrTooLarge
	}
	if err := c.sendNow(packet); err != nil {
		return nil, err
	}
	select {
	case reasons := <-r.answered:
		return reasons, nil
	case <-c.done:
		return nil, c.Err()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Publish publishes a message. At QoS 1 it waits for the PUBACK and returns its reason code, also
// one from 0x80 on, which is a refusal. After an error the message may or may not have been
// published, unless that is ErrTooLarge.
func (c *Conn) Publish(ctx context.Context, message *Publish) (reason byte, err error) {
	packet := message.Packet()
	if size, ok := PublishSize(packet); !ok || size > c.maxPacket {
		return 0, ErrTooLarge
	}
	if packet.QoS == 0 {
		return 0, c.Send(AppendPublish(nil, packet))
	}
	select {
	case <-c.slots:
	case <-c.done:
		return 0, c.Err()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	reasons, err := c.call(ctx, packets.PUBACK, func() { c.slots <- struct{}{} },
		func(id uint16) []byte {
			packet.PacketID = id
			return AppendPublish(nil, packet)
		})
	if err != nil {
		return 0, err
	}
	return reasons[0], nil
}

// Subscribe subscribes, and checks that each subscription was granted with the QoS that it asks
// for.
func (c *Conn) Subscribe(ctx context.Context, subscriptions ...packets.SubOptions) error {
	reasons, err := c.TrySubscribe(ctx, subscriptions...)
	if err != nil {
		return err
	}
	for i, granted := range reasons {
		if qos := subscriptions[i].QoS; granted != qos {
			return fmt.Errorf("subscribe to %s: the broker granted 0x%02X instead of QoS %d",
				subscriptions[i].Topic, granted, qos)
		}
	}
	return nil
}

// TrySubscribe subscribes, and returns the reason code of each subscription: the QoS that was
// granted, or a refusal from 0x80 on.
func (c *Conn) TrySubscribe(ctx context.Context,
	subscriptions ...packets.SubOptions,
) (reasons []byte, err error) {
	reasons, err = c.call(ctx, packets.SUBACK, func() {}, func(id uint16) []byte {
		var encoded bytes.Buffer
		subscribe := packets.Subscribe{
			PacketID: id, Subscriptions: subscriptions,
			Properties: &packets.Properties{},
		}
		_, _ = subscribe.WriteTo(&encoded) // a buffer takes all
		return encoded.Bytes()
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if len(reasons) != len(subscriptions) {
		return nil, fmt.Errorf("subscribe: the broker answered %d filters with %d reason codes",
			len(subscriptions), len(reasons))
	}
	return reasons, nil
}
