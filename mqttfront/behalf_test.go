package mqttfront

import (
	"context"
	"testing"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
)

// subscribingDriver notes for whom it is asked.
type subscribingDriver struct {
	NoDriver
	asked chan string
}

func (d subscribingDriver) SubscribeNotifications(_ context.Context, clientID, filter string) (bool, error) {
	d.asked <- clientID + " " + filter
	return true, nil
}

// A leader has the clients subscribed that watch a key, and no others.
func TestWatchingClientsAreSubscribed(t *testing.T) {
	f, s := newTestFront(t)
	driver := subscribingDriver{asked: make(chan string, 10)}
	f.world.Driver = driver
	serve(f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.subscribeClients(ctx)
	}()
	arrive(f, del, "0123456789abcdef", "__srcId", "writer")
	f.Applied(s.outcome(1, fsm.CodeDeleted), s.tags[:1])
	arrive(f, "*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n", "0123456789abcdeX", "__srcId", "a")
	f.Applied(s.outcome(2, fsm.CodeOK), s.tags[1:])
	if got, want := <-driver.asked, "a clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/61/command/notify/+"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// A notification that found no subscriber does not end the watch of a client that could be subscribed.
	proposed := len(s.proposed)
	f.notified(&outgoing{event: &fsm.Event{Key: "k"}, receiver: &fsm.Receiver{ClientID: "b"}}, mqttconn.ReasonNoMatchingSubscriber)
	<-driver.asked
	cancel()
	<-done
	if len(s.proposed) != proposed {
		t.Errorf("proposed: %+v", s.proposed[proposed:])
	}
	if len(driver.asked) != 0 {
		t.Errorf("asked for %s, too", <-driver.asked)
	}
}
