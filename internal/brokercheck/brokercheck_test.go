package brokercheck

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
	"holdfast/internal/mqttconn/mqtttest"
)

// A broker that acknowledges everything and delivers nothing fails each check that matters, and the
// others say what they have seen.
func TestBrokerThatKeepsNothingIsNotOK(t *testing.T) {
	synctest.Test(t, checkEmptyBroker)
}

func checkEmptyBroker(t *testing.T) {
	var serving sync.WaitGroup
	defer serving.Wait()
	dialer := &mqttconn.Dialer{
		Addresses: []mqttconn.Address{{Host: "broker:1883"}}, Timeout: time.Minute,
		Network: func(context.Context, string) (net.Conn, error) {
			near, far := net.Pipe()
			serving.Go(func() {
				mqtttest.Serve(far, func(*packets.ControlPacket) (packets.Packet, bool) {
					return nil, true
				})
			})
			return near, nil
		},
	}
	findings, err := Run(t.Context(), Config{
		Cluster: "holdfast", Node: "check",
		Login: &mqttconn.Login{Dialer: dialer, KeepAlive: time.Minute, Timeout: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	if AllOK(findings) {
		t.Error("the store can rely on it")
	}
	want := map[string]bool{
		"the session is there after a takeover":                        false,
		"a takeover ends the other connection":                         false,
		"what was not acknowledged comes again, in order":              false,
		"messages in flight":                                           true,
		"redelivery has DUP":                                           true,
		"the message expiry counts down":                               true,
		"the subscription is there after a takeover":                   false,
		"a message that is too large for the session holds nothing up": false,
		"a message without a subscriber is told":                       true,
	}
	for _, f := range findings {
		ok, known := want[f.Check]
		if !known || ok != f.OK || f.Found == "" || f.Why == "" {
			t.Errorf("%+v", f)
		}
		delete(want, f.Check)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}
