package client

import (
	"errors"
	"testing"

	"github.com/eclipse/paho.golang/paho"
)

// A broker may accept smaller packets than the one to which the request was sent before. Then the request may have been executed.
func TestRequestThatTheNextBrokerDoesNotAcceptIsOfUnknownOutcome(t *testing.T) {
	for name, test := range map[string]struct {
		again bool
		want  error
	}{"sent for the first time": {false, ErrNotExecuted}, "sent before": {true, ErrOutcomeUnknown}} {
		t.Run(name, func(t *testing.T) {
			s := &session{maxPacket: 10}
			waiting := &call{done: make(chan answer, 1)}
			s.send(waiting, &paho.Publish{Topic: "statestore", QoS: 1, Payload: make([]byte, 20)}, test.again)
			if got := <-waiting.done; !errors.Is(got.err, test.want) {
				t.Errorf("%v, want %v", got.err, test.want)
			}
		})
	}
}
