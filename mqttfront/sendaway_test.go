package mqttfront

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/internal/mqttconn"
)

// slowDriver takes its time to send somebody away.
type slowDriver struct {
	NoDriver
	sent chan Publisher
}

func (slowDriver) TrustedIdentity() bool { return true }

func (d slowDriver) Disconnect(ctx context.Context, publisher Publisher) error {
	d.sent <- publisher
	<-ctx.Done()
	return ctx.Err()
}

// A broker that does not send clients away in time holds no request up, however many there are to be sent away; and only who leads does it.
func TestSendAwayDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newTestFront(t)
		driver := slowDriver{sent: make(chan Publisher, 1000)}
		f.world.Driver = driver
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.sendOffendersAway(ctx)
		offend := func() {
			f.take(ctx, mqttconn.Message{Publish: &paho.Publish{QoS: 1, Topic: InvokeTopic, Payload: []byte(del), Properties: &paho.PublishProperties{
				ResponseTopic: InvokeTopic, CorrelationData: []byte("0123456789abcdef"), User: paho.UserProperties{{Key: "__srcId", Value: "robot"}},
			}}}, time.Now(), func() {})
		}
		offend()
		synctest.Wait()
		if len(driver.sent) != 0 {
			t.Error("a node that does not lead sends away")
		}
		serve(f)
		began := time.Now()
		for range 10 * maxOffenders {
			offend()
		}
		arrive(f, del, "0123456789abcdef")
		if waited := time.Since(began); waited > 0 || len(s.proposed) != 1 {
			t.Errorf("a request waited for %v, %d proposed", waited, len(s.proposed))
		}
		time.Sleep(2 * time.Duration(maxOffenders) * sendAwayTime) // in virtual time
		if sent := len(driver.sent); sent == 0 || sent > maxOffenders+1 {
			t.Errorf("%d sent away", sent)
		}
	})
}

// Where the broker vouches for client ids, nobody has the store write under another client's id; and never on a node's own topics.
func TestResponseTopicsOfOthers(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		f, _ := newTestFront(t, func(c *Config) {
			if trusted {
				c.Identity.ClientIDProperty, c.Identity.OwnResponses = "id", true
			}
		})
		for topic, ours := range map[string]bool{
			"clients/a/r": true, "elsewhere": true, "clients": true, "clients/b/r": !trusted, "clients/b": !trusted, "clients/": !trusted, "clients/ab/r": !trusted,
			"holdfast/holdfast/n1/probe": false, "clients/61/" + goResponse: true, "clients/62/" + goResponse: !trusted, "clients/a/" + goResponse: !trusted,
			strings.Repeat("l/", 127) + "l": true, strings.Repeat("l/", 128) + "l": false,
		} {
			if got := validResponseTopic(topic) && f.isOwnResponseTopic(topic, "a"); got != ours {
				t.Errorf("trusted: %v, %s: %v", trusted, topic, got)
			}
		}
	}
}
