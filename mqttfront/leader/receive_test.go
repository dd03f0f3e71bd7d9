package leader

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/wire"
)

// admission records what a Receiver admits and counts.
type admission struct {
	Admission
	admitted []*Request
	ignored  map[string]int
}

func (a *admission) Admit(_ context.Context, r *Request) { a.admitted = append(a.admitted, r) }
func (a *admission) Flush()                              {}
func (a *admission) Blocked() bool                       { return false }
func (a *admission) CountIgnored(reason string)          { a.ignored[reason]++ }

// What is no request is acknowledged and counted. Its publisher is disconnected only for an invalid
// response topic. A request is admitted, and not acknowledged by the receiver. After the drain has
// begun nothing is acknowledged: the broker keeps it for the next connection.
func TestOnlyRequestsAreAdmitted(t *testing.T) {
	request := message(get, "1", nil)
	retained := message(get, "1", nil)
	retained.Retain = true
	badTopic := message(get, "1", nil)
	badTopic.Properties.ResponseTopic = "a/#"
	for name, test := range map[string]struct {
		message                        mqttconn.Message
		draining                       bool
		admitted, acknowledged, kicked bool
		ignored                        map[string]int
	}{
		"a request": {message: request, admitted: true},
		"a retained message": {
			message: retained, acknowledged: true,
			ignored: map[string]int{wire.ReasonRetained: 1},
		},
		"an invalid response topic": {
			message: badTopic, acknowledged: true,
			kicked: true, ignored: map[string]int{wire.ReasonBadResponseTopic: 1},
		},
		"a request while the node drains":          {message: request, draining: true},
		"a retained message while the node drains": {message: retained, draining: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			drain := make(chan struct{})
			if test.draining {
				close(drain)
				cancel() // the connection ends; until then the message is waited with
			}
			a := &admission{ignored: make(map[string]int)}
			kicked, acknowledged := false, false
			decoder := wire.Decoder{DefaultExpiry: time.Minute, MaxExpiry: time.Hour}
			c := NewReceiver(a, broker.NoDriver{}, decoder, drain,
				func(*wire.Request) { kicked = true }, noQuestion)
			c.Receive(ctx, test.message, now(), func() { acknowledged = true })
			if (len(a.admitted) == 1) != test.admitted || acknowledged != test.acknowledged ||
				kicked != test.kicked || !maps.Equal(a.ignored, test.ignored) {
				t.Errorf("%d admitted, acknowledged %v, kicked %v, ignored %v", len(a.admitted),
					acknowledged, kicked, a.ignored)
			}
		})
	}
}

// † A node that drains reads no further: what it reads and does not answer would come to the next
// leader as a redelivery.
func TestDrainingNodeReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drain := make(chan struct{})
		c := NewReceiver(&admission{}, broker.NoDriver{}, wire.Decoder{}, drain, nil, noQuestion)
		if c.Blocked() {
			t.Error("it blocks before the drain")
		}
		close(drain)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		read, acknowledged := false, false
		go func() {
			c.Receive(ctx, message(get, "1", nil), now(), func() { acknowledged = true })
			read = true
		}()
		synctest.Wait()
		if read || !c.Blocked() {
			t.Error("it reads on, or does not say that it does not")
		}
		cancel()
		synctest.Wait()
		if !read || acknowledged {
			t.Errorf("when the connection has ended: read %v, acknowledged %v", read, acknowledged)
		}
	})
}
