package leader

import (
	"context"
	"testing"
	"testing/synctest"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/outbox"
	"holdfast/mqttfront/wire"
)

// clientDriver is a driver that vouches for client ids. It records which clients it is asked to
// disconnect and to subscribe.
type clientDriver struct {
	broker.NoDriver
	kicked     chan string
	subscribed chan string
}

func (clientDriver) TrustedIdentity() bool { return true }

func (d clientDriver) Kick(_ context.Context, publisher broker.Publisher) error {
	d.kicked <- publisher.ClientID
	return nil
}

func (d clientDriver) SubscribeNotifications(_ context.Context, clientID, filter string) (bool,
	error,
) {
	d.subscribed <- clientID + " " + filter
	return true, nil
}

// The publisher of an invalid response topic is disconnected and not answered.
func TestPublisherOfAnInvalidResponseTopicIsKicked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := clientDriver{kicked: make(chan string, 10)}
		f, s := newNodeOf(t, driver, wire.Identity{})
		ctx, cancel := context.WithCancel(t.Context())
		go f.clients.kicker.Run(ctx)
		serve(f)
		acknowledged := false
		f.receiver.decodeAndAdmit(ctx,
			mqttconn.Message{Publish: &mqttconn.Publish{
				QoS: 1, Topic: topics.Invoke,
				Payload: []byte(del), Properties: &mqttconn.Properties{
					ResponseTopic: topics.Invoke, CorrelationData: []byte("0123456789abcdef"),
					User: mqttconn.UserProperties{{Key: "__srcId", Value: "robot"}},
				},
			}}, now(), func() { acknowledged = true })
		if !acknowledged {
			t.Error("the message is left at the broker")
		}
		synctest.Wait()
		if len(driver.kicked) != 1 || <-driver.kicked != "robot" || len(s.proposed) != 0 {
			t.Errorf("the publisher is connected, %d commands proposed", len(s.proposed))
		}
		cancel()
		synctest.Wait()
	})
}

// A leader subscribes the clients that watch a key, and no others.
func TestWatchingClientsAreSubscribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := clientDriver{subscribed: make(chan string, 10)}
		f, s := newNodeOf(t, driver, wire.Identity{})
		serve(f)
		ctx, cancel := context.WithCancel(t.Context())
		go f.clients.subscriber.Run(ctx)
		arrive(f, del, "0123456789abcdef", "__srcId", "writer")
		f.Applied(s.outcome(1, fsm.CodeDeleted), s.tags[:1])
		arrive(f, "*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n", "0123456789abcdeX", "__srcId", "a")
		f.Applied(s.outcome(2, fsm.CodeOK), s.tags[1:])
		synctest.Wait()
		if got, want := <-driver.subscribed,
			"a clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/61/command/notify/+"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		// A notification without a subscriber does not end the watch of a client that could be
		// subscribed.
		proposed := len(s.proposed)
		f.leader.NoSubscriber(&outbox.Output{
			Event:    &fsm.Event{Key: "k"},
			Receiver: &fsm.Receiver{ClientID: "b"},
		})
		synctest.Wait()
		<-driver.subscribed
		if len(s.proposed) != proposed || len(driver.subscribed) != 0 {
			t.Errorf("proposed %+v, %d more subscribed", s.proposed[proposed:],
				len(driver.subscribed))
		}
		cancel()
		synctest.Wait()
	})
}
