package role

import (
	"context"
	"maps"
	"testing"
	"time"

	"holdfast/internal/mqttconn"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/ingest"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// admission records what a Receiver admits and counts.
type admission struct {
	Admission
	leads    bool
	admitted []*pending.Request
	ignored  map[string]int
}

func (a *admission) Admit(_ context.Context, r *pending.Request) { a.admitted = append(a.admitted, r) }
func (a *admission) CountIgnored(reason string)                  { a.ignored[reason]++ }
func (a *admission) Leads() bool                                 { return a.leads }

// What is no request is acknowledged and counted. Its publisher is disconnected only by a leader, and only for an invalid response topic. A request is
// admitted, and not acknowledged by the receiver. After the drain has begun nothing is acknowledged: the broker keeps it for the next session.
func TestOnlyRequestsAreAdmitted(t *testing.T) {
	request := message(get, "1", nil)
	retained := message(get, "1", nil)
	retained.Retain = true
	badTopic := message(get, "1", nil)
	badTopic.Properties.ResponseTopic = "a/#"
	for name, test := range map[string]struct {
		message                        mqttconn.Message
		leads, draining                bool
		admitted, acknowledged, kicked bool
		ignored                        map[string]int
	}{
		"a request":          {message: request, admitted: true},
		"a retained message": {message: retained, acknowledged: true, ignored: map[string]int{wire.ReasonRetained: 1}},
		"an invalid response topic, at a follower": {message: badTopic, acknowledged: true, ignored: map[string]int{wire.ReasonBadResponseTopic: 1}},
		"an invalid response topic, at the leader": {message: badTopic, leads: true, acknowledged: true, kicked: true, ignored: map[string]int{wire.ReasonBadResponseTopic: 1}},
		"a request while the node drains":          {message: request, draining: true},
		"a retained message while the node drains": {message: retained, draining: true},
	} {
		t.Run(name, func(t *testing.T) {
			drain := make(chan struct{})
			if test.draining {
				close(drain)
			}
			a := &admission{leads: test.leads, ignored: make(map[string]int)}
			kicked, acknowledged := false, false
			decoder := wire.Decoder{DefaultExpiry: time.Minute, MaxExpiry: time.Hour}
			c := NewReceiver(a, broker.NoDriver{}, decoder, drain, func(*wire.Request) { kicked = true }, noQuestion)
			c.Receive(t.Context(), test.message, ingest.Arrival{At: time.Now()}, func() { acknowledged = true })
			if (len(a.admitted) == 1) != test.admitted || acknowledged != test.acknowledged || kicked != test.kicked || !maps.Equal(a.ignored, test.ignored) {
				t.Errorf("%d admitted, acknowledged %v, kicked %v, ignored %v", len(a.admitted), acknowledged, kicked, a.ignored)
			}
		})
	}
}

// The broker's time of a redelivered message is not used: it may be of the first delivery.
func TestRedeliveredRequestHasNoBrokerTime(t *testing.T) {
	for name, redelivered := range map[string]bool{"delivered": false, "redelivered": true} {
		t.Run(name, func(t *testing.T) {
			a := &admission{}
			c := NewReceiver(a, broker.NoDriver{}, wire.Decoder{DefaultExpiry: time.Minute, MaxExpiry: time.Hour}, nil, nil, noQuestion)
			m := message(get, "1", nil)
			m.Redelivered = redelivered
			c.Receive(t.Context(), m, ingest.Arrival{At: time.Now(), BrokerReceivedAfter: time.Now()}, func() {})
			if r := a.admitted[0]; r.BrokerReceivedAfter.IsZero() != redelivered || r.Redelivered != redelivered {
				t.Errorf("BrokerReceivedAfter %v, redelivered %v", r.BrokerReceivedAfter, r.Redelivered)
			}
		})
	}
}
