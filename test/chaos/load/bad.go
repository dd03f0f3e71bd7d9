package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/topics"
	"holdfast/resp"
)

// Clients that behave badly. Nothing of what they do is in the history: the other clients must not
// notice them.

// bad runs a misbehaving client of a kind (flood, deaf, watchers) until the context ends.
func bad(ctx context.Context, kind, broker string) error {
	id := fmt.Sprintf("bad-%s-%d", kind, time.Now().UnixNano())
	responses := "clients/" + id + "/responses"
	c, _, err := dial(broker, id, false, []string{
		responses, topics.NotificationPrefix(id) + "#",
	})
	if err != nil {
		return err
	}
	defer c.end()
	stop := context.AfterFunc(ctx, c.end)
	defer stop()
	b := &badClient{id: id, responses: responses, connection: c}
	switch kind {
	case "flood":
		return b.flood(ctx)
	case "deaf":
		return b.deaf(ctx)
	case "watchers":
		return b.watchers(ctx)
	default:
		return fmt.Errorf("there is no bad client %q", kind)
	}
}

type badClient struct {
	*connection
	id, responses string
	sent          int
}

func (b *badClient) send(as string, arguments ...string) error {
	b.sent++
	expiry := uint32(10)
	properties := &packets.Properties{
		ResponseTopic: b.responses, CorrelationData: fmt.Appendf(nil, "%s-%016d", b.id, b.sent),
		MessageExpiry: &expiry,
		User: []packets.User{
			{Key: "__ts", Value: fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), b.id)},
			{Key: "__srcId", Value: as},
			{Key: "__protVer", Value: "1.0"},
		},
	}
	return b.publish(topics.Invoke, resp.AppendArray(nil, arguments...), properties, func() {})
}

// flood sends as fast as the broker takes it.
func (b *badClient) flood(ctx context.Context) error {
	go b.receive(func(*packets.Publish) {})
	for ctx.Err() == nil {
		if err := b.send(b.id, "SET", fmt.Sprintf("bad/%d", b.sent%1000),
			strings.Repeat("x", 100)); err != nil {
			return nil //nolint:nilerr // the broker ended the connection, which it may do
		}
	}
	return nil
}

// deaf watches keys that others change, and asks for long values. It reads nothing from its
// connection.
func (b *badClient) deaf(ctx context.Context) error {
	for n := range 3 {
		if err := b.send(b.id, "KEYNOTIFY", fmt.Sprintf("watched/%d", n)); err != nil {
			return err
		}
	}
	if err := b.send(b.id, "SET", "bad/long", strings.Repeat("x", 1<<20)); err != nil {
		return err
	}
	for ctx.Err() == nil && b.sent < 300 {
		// no PUBACK is read, so it stops when its window of unacknowledged messages is full
		select {
		case b.window <- struct{}{}:
			<-b.window
			if b.send(b.id, "GET", "bad/long") != nil {
				return nil
			}
		case <-time.After(100 * time.Millisecond):
			<-ctx.Done()
		}
	}
	<-ctx.Done()
	return nil
}

// watchers watches one key under ten thousand client ids, over one connection, and changes the key
// again and again.
func (b *badClient) watchers(ctx context.Context) error {
	const crowd = 10_000
	watching := make(chan struct{}, crowd)
	go b.receive(func(p *packets.Publish) {
		if string(p.Payload) == "+OK\r\n" {
			select {
			case watching <- struct{}{}:
			default:
			}
		}
	})
	for n := range crowd {
		if err := b.send(fmt.Sprintf("%s-%d", b.id, n), "KEYNOTIFY", "bad/crowded"); err != nil {
			return fmt.Errorf("after %d watches: %w", n, err)
		}
	}
	for n := range crowd {
		select {
		case <-watching:
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d watch", n, crowd)
		}
	}
	for ctx.Err() == nil {
		if err := b.send(b.id, "SET", "bad/crowded", fmt.Sprint(b.sent)); err != nil &&
			ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}
