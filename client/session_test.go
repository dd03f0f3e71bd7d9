package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/internal/mqttconn"
)

// After a reconnect, the broker may accept only smaller packets. If a request is then too large,
// its outcome is unknown if it was sent before. Otherwise it was not executed.
func TestRequestThatTheNextBrokerDoesNotAcceptIsOfUnknownOutcome(t *testing.T) {
	for name, test := range map[string]struct {
		again bool
		want  error
	}{
		"sent for the first time": {false, ErrNotExecuted},
		"sent before":             {true, ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := &session{brokerMaxPacket: 10}
			waiting := &call{done: make(chan answer, 1)}
			s.send(1, waiting,
				&mqttconn.Publish{Topic: "statestore", QoS: 1, Payload: make([]byte, 20)},
				test.again)
			if got := <-waiting.done; !errors.Is(got.err, test.want) {
				t.Errorf("%v, want %v", got.err, test.want)
			}
		})
	}
}

// If the broker refuses a request that was also sent in an earlier session, the outcome is unknown:
// the store may have received the first copy.
func TestRefusedCopyHasAnUnknownOutcome(t *testing.T) {
	for name, again := range map[string]bool{
		"sent for the first time": false,
		"sent before":             true,
	} {
		t.Run(name, func(t *testing.T) {
			waiting := &call{done: make(chan answer, 1)}
			// by packet id, which is never 0
			s := &session{ids: make(chan uint16, 1), flight: []flight{{}, {waiting, again}}}
			if !s.acknowledged(1, 0x87) {
				t.Fatal("the packet id is not known")
			}
			if got := <-waiting.done; !errors.Is(got.err, ErrRefused) ||
				errors.Is(got.err, ErrOutcomeUnknown) != again {
				t.Errorf("%v", got.err)
			}
		})
	}
}

// After PUBACK 0x10 (no matching subscribers) a request counts as not sent, unless an earlier
// session sent another copy of it.
func TestRequestWithoutASubscriberIsUnsent(t *testing.T) {
	for name, again := range map[string]bool{
		"sent for the first time": false,
		"sent before":             true,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // it is not sent again in this test
			waiting := &call{sent: true, done: make(chan answer, 1)}
			s := &session{
				ctx: ctx, ids: make(chan uint16, 1),
				flight: []flight{{}, {waiting, again}}, markUnreceived: new(Client).markUnreceived,
			}
			if !s.acknowledged(1, mqttconn.ReasonNoMatchingSubscriber) || waiting.sent != again {
				t.Errorf("it counts as sent: %v", waiting.sent)
			}
			s.working.Wait()
		})
	}
}

// The client does not send a request again when the store may have forgotten the first copy. The
// time in which the machine was suspended counts.
func TestOldRequestIsNotSentAgain(t *testing.T) {
	for name, test := range map[string]struct {
		sent bool
		// time since the call began, without the time in which the machine was suspended
		awake     time.Duration
		suspended time.Duration
		expiry    time.Duration
		want      bool
	}{
		"sent, and old":             {true, 13 * time.Minute, 0, time.Hour, false},
		"sent, and recent":          {true, time.Minute, 0, 10 * time.Second, true},
		"not sent, but old":         {false, 13 * time.Minute, 0, time.Hour, true},
		"sent, and suspended":       {true, time.Second, 3 * time.Minute, 10 * time.Second, false},
		"sent, and suspended a bit": {true, time.Second, time.Minute, 10 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			began := moment{time.Now().Add(-test.awake), sinceBoot() - test.awake - test.suspended}
			waiting := &call{
				correlation: "c", publish: &mqttconn.Publish{}, sent: test.sent,
				began: began, expiry: test.expiry, done: make(chan answer, 1),
			}
			c := &Client{pending: map[string]*call{"c": waiting}}
			publish, again := c.markSent(waiting)
			if (publish != nil) != test.want || again != (test.sent && test.want) {
				t.Errorf("message: %v, again: %v", publish != nil, again)
			}
			if test.want {
				return
			}
			select {
			case got := <-waiting.done:
				if !errors.Is(got.err, ErrOutcomeUnknown) {
					t.Error(got.err)
				}
			default:
				t.Error("the call has no outcome")
			}
		})
	}
}

// † A request that was given up because nobody receives requests is not sent any more, however late
// its caller learns of it.
func TestRequestThatNobodyReceivesIsGivenUpForGood(t *testing.T) {
	c := &Client{
		config: Config{NoStoreTimeout: time.Nanosecond}, pending: make(map[string]*call),
	}
	waiting := &call{done: make(chan answer, 1), correlation: "c", sent: true}
	c.pending["c"], c.order = waiting, []*call{waiting}
	for c.markUnreceived(waiting, false) { // until the time is over
	}
	if got := <-waiting.done; !errors.Is(got.err, ErrNotExecuted) ||
		!errors.Is(got.err, ErrNoStore) {
		t.Errorf("%v", got.err)
	}
	if publish, _ := c.markSent(waiting); publish != nil || len(c.order) != 0 {
		t.Error("it is sent again")
	}
}
