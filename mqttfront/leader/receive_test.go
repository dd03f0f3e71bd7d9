package leader

import (
	"context"
	"maps"
	"testing"
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
func (a *admission) CountIgnored(reason string)          { a.ignored[reason]++ }

// What is no request is acknowledged and counted. Its publisher is disconnected only for an invalid response topic. A request is
// admitted, and not acknowledged by the receiver. After the drain has begun nothing is acknowledged: the broker keeps it for the next session.
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
		"a request":                                {message: request, admitted: true},
		"a retained message":                       {message: retained, acknowledged: true, ignored: map[string]int{wire.ReasonRetained: 1}},
		"an invalid response topic":                {message: badTopic, acknowledged: true, kicked: true, ignored: map[string]int{wire.ReasonBadResponseTopic: 1}},
		"a request while the node drains":          {message: request, draining: true},
		"a retained message while the node drains": {message: retained, draining: true},
	} {
		t.Run(name, func(t *testing.T) {
			drain := make(chan struct{})
			if test.draining {
				close(drain)
			}
			a := &admission{ignored: make(map[string]int)}
			kicked, acknowledged := false, false
			decoder := wire.Decoder{DefaultExpiry: time.Minute, MaxExpiry: time.Hour}
			c := NewReceiver(a, broker.NoDriver{}, decoder, drain, func(*wire.Request) { kicked = true }, noQuestion)
			c.Receive(t.Context(), test.message, time.Now(), func() { acknowledged = true })
			if (len(a.admitted) == 1) != test.admitted || acknowledged != test.acknowledged || kicked != test.kicked || !maps.Equal(a.ignored, test.ignored) {
				t.Errorf("%d admitted, acknowledged %v, kicked %v, ignored %v", len(a.admitted), acknowledged, kicked, a.ignored)
			}
		})
	}
}
