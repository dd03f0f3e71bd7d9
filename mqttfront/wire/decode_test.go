package wire

import (
	"strings"
	"testing"
	"time"

	"holdfast/fsm"
	"holdfast/internal/mqttconn"
	"holdfast/internal/topics"
	"holdfast/resp"
)

// If the broker vouches for client ids, a request must not have a response topic of another client.
// In no case may it have a topic of a node.
func TestResponseTopicOfAnotherClientIsRefused(t *testing.T) {
	for name, identity := range map[string]Identity{
		"any client id": {}, "client ids by the broker": {
			ClientIDProperty: "id",
			OwnResponses:     true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			trusted := identity.OwnResponses
			for topic, allowed := range map[string]bool{
				"clients/a/r": true, "elsewhere": !trusted, "clients": !trusted,
				"clients/b/r": !trusted, "clients/b": !trusted, "clients/": !trusted,
				"clients/ab/r":               !trusted,
				"holdfast/holdfast/n1/probe": false, "clients/61/" + goResponse: true,
				"clients/62/" + goResponse: !trusted, "clients/a/" + goResponse: !trusted,
				topics.Invoke: false, "$SYS/x": false, "r/+": false, "r/#": false,
				strings.Repeat("l/", 127) + "l": !trusted, strings.Repeat("l/", 128) + "l": false,
			} {
				t.Run(topic, func(t *testing.T) {
					if got := isResponseTopic(topic) &&
						identity.mayUse(topic, "a"); got != allowed {
						t.Errorf("%v", got)
					}
				})
			}
		})
	}
}

// The size of a request counts everything that a client can make a node keep.
func TestSizeCountsEverything(t *testing.T) {
	big := strings.Repeat("x", 10_000)
	message := &mqttconn.Publish{
		QoS: 1, Payload: []byte("p"),
		Properties: &mqttconn.Properties{
			ResponseTopic:   "clients/c/" + big,
			CorrelationData: []byte(big),
		},
	}
	for _, key := range []string{"__srcId", "__ts", "__ft", "__protVer", "x"} {
		message.Properties.User.Add(key, big)
	}
	var r Request
	(&Decoder{}).Decode(message, time.Now(), 0, &r)
	if r.Size < 70_000 {
		t.Errorf("counted as %d bytes", r.Size)
	}
}

// set returns a SET request as clients send it.
func set() *mqttconn.Publish {
	expiry := uint32(10)
	return &mqttconn.Publish{
		Topic: topics.Invoke, QoS: 1,
		Payload: resp.AppendArray(nil, "SET", "key", strings.Repeat("v", 100)),
		Properties: &mqttconn.Properties{
			ResponseTopic:   "clients/client-1/services/statestore/_any_/command/invoke/response",
			CorrelationData: []byte("0123456789abcdef"), MessageExpiry: &expiry,
			User: mqttconn.UserProperties{
				{Key: "__ts", Value: "1696374425000:00001:client-1"},
				{Key: "__srcId", Value: "client-1"},
				{Key: "__protVer", Value: "1.0"},
			},
		},
	}
}

// The TTL of a request is its message expiry, up to MaxExpiry. Its outcome is remembered for the
// TTL and Margin.
func TestTTLIsTheMessageExpiryUpToMaxExpiry(t *testing.T) {
	d := Decoder{DefaultExpiry: time.Minute, MaxExpiry: 2 * time.Minute, Margin: time.Hour}
	now := time.Now()
	seconds := func(n uint32) *uint32 { return &n }
	for name, test := range map[string]struct {
		expiry    *uint32
		ttl, left time.Duration // left is the time until the deadline
	}{
		"with an expiry":       {seconds(10), 10 * time.Second, 10 * time.Second},
		"without an expiry":    {nil, time.Minute, 0},
		"with a longer expiry": {seconds(600), 2 * time.Minute, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			message, deadline := set(), time.Time{}
			message.Properties.MessageExpiry = test.expiry
			if test.expiry != nil {
				deadline = now.Add(test.left)
			}
			var r Request
			ttl, verdict, _ := d.Decode(message, now, 0, &r)
			if verdict != VerdictExecute || ttl != test.ttl || !r.Deadline.Equal(deadline) ||
				r.Command.Lifetime != (ttl+time.Hour).Milliseconds() {
				t.Errorf("verdict %d, TTL %v, deadline in %v, remembered for %d ms", verdict, ttl,
					r.Deadline.Sub(now), r.Command.Lifetime)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	d := Decoder{DefaultExpiry: time.Minute, MaxExpiry: time.Minute}
	message, now := set(), time.Now()
	for b.Loop() {
		var r Request
		if _, verdict, reason := d.Decode(message, now, 0, &r); verdict != VerdictExecute {
			b.Fatal(verdict, reason)
		}
	}
}

func BenchmarkEncodeReply(b *testing.B) {
	var r Request
	now := time.Now()
	(&Decoder{DefaultExpiry: time.Minute, MaxExpiry: time.Minute}).Decode(set(), now, 0, &r)
	result := fsm.Result{Code: fsm.CodeOK}
	var encoded []byte
	for b.Loop() {
		encoded = mqttconn.AppendPublish(encoded[:0], EncodeReply(&r, &result, now))
	}
}
