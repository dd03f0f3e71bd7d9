package client_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/client"
)

// standIn answers requests in the store's place: each by the function, which returns the payload of the reply.
func standIn(t *testing.T, topic string, answer func(request []byte) string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(broker, "mqtt://"))
	if err != nil {
		t.Fatal(err)
	}
	var (
		c       *paho.Client
		replies sync.WaitGroup
	)
	c = paho.NewClient(paho.ClientConfig{Conn: conn, OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) {
		p := r.Packet
		reply := &paho.Publish{Topic: p.Properties.ResponseTopic, QoS: 1, Payload: []byte(answer(p.Payload)), Properties: &paho.PublishProperties{
			CorrelationData: p.Properties.CorrelationData,
			User:            paho.UserProperties{{Key: "__stat", Value: "200"}, {Key: "__ts", Value: "1700000000000:00000:StateStore"}},
		}}
		replies.Go(func() { _, _ = c.Publish(t.Context(), reply) }) // else the reader waits for its own PUBACK
		return true, nil
	}}})
	if _, err := c.Connect(t.Context(), &paho.Connect{ClientID: "stand-in", CleanStart: true, KeepAlive: 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: 1}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Disconnect(&paho.Disconnect{})
		<-c.Done()
		replies.Wait()
	})
}

// A store that is overloaded says nothing of the lock: it is asked again soon, not after the time to live of another client's lock.
func TestLockIsTriedAgainSoonAfterAnOverload(t *testing.T) {
	const topic, ttl = "stand-in/invoke", time.Minute
	var sets, watches atomic.Int32
	standIn(t, topic, func(request []byte) string {
		switch {
		case bytes.Contains(request, []byte("SET")) && sets.Add(1) > 2, bytes.Contains(request, []byte("STOP")):
			return "+OK\r\n"
		case bytes.Contains(request, []byte("VDEL")):
			return ":1\r\n"
		case bytes.Contains(request, []byte("KEYNOTIFY")) && watches.Add(1) > 2:
			return "+OK\r\n"
		default:
			return "-ERR the service is overloaded; try again\r\n"
		}
	})
	c, err := client.Connect(t.Context(), client.Config{Addresses: []string{broker}, ClientID: "overloaded", InvokeTopic: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), ttl/2)
	defer cancel()
	lock, err := c.Lock(ctx, "l", ttl)
	if err != nil {
		t.Fatalf("%v after %d SETs and %d KEYNOTIFYs", err, sets.Load(), watches.Load())
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
