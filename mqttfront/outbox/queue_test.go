package outbox

import (
	"slices"
	"strings"
	"testing"

	"holdfast/fsm"
	"holdfast/mqttfront/wire"
)

func reply(client, topic string) *Output {
	r := &wire.Request{ResponseTopic: topic}
	r.Command.Principal.ClientID = client
	return &Output{Request: r}
}

// newTestQueue returns a queue for three waiting notifications of 1 MiB together. trusted says
// whether the broker vouches for client ids.
func newTestQueue(trusted bool) *queue {
	p := penalties{trusted: func() bool { return trusted }}
	return newQueue(3, 1<<20, p.key)
}

// sendUntilWait takes outputs from the queue until no further one may be sent now.
func sendUntilWait(q *queue) (sent []*Output) {
	for o, wait := q.next(); !wait; o, wait = q.next() {
		sent = append(sent, o)
	}
	return sent
}

// lose ends the connection of a queue, with all outputs in flight unacknowledged, and begins the
// next connection. It returns the outputs that are given up.
func lose(q *queue, blamed bool) (abandoned []*Output) {
	for _, o := range slices.Clone(q.inFlight) {
		q.markLost(o)
	}
	return q.requeue(blamed)
}

// † An output that was in flight when the broker ended the connection is sent again alone. If the
// broker ends that connection, too, the output is given up, with the other replies to the same
// client. Replies to other clients are kept.
func TestReplyThatEndsConnectionsIsGivenUpWithItsClients(t *testing.T) {
	q := newTestQueue(true)
	poison, another, innocent := reply("robot", "a"), reply("robot", "b"), reply("press", "c")
	for _, o := range []*Output{poison, innocent, another} {
		q.push(o)
	}
	if sent := sendUntilWait(q); len(sent) != 3 {
		t.Fatalf("%d in flight at first", len(sent))
	}
	if lose(q, true) != nil {
		t.Error("given up after a loss that any of three may have caused")
	}
	if sent := sendUntilWait(q); len(sent) != 1 || sent[0] != poison {
		t.Fatalf("%d go together after a loss, want the first alone", len(sent))
	}
	if abandoned := lose(q, true); !slices.Equal(abandoned, []*Output{poison, another}) {
		t.Errorf("%d dropped, want both replies to the client", len(abandoned))
	}
	if sent := sendUntilWait(q); len(sent) != 1 || sent[0] != innocent {
		t.Fatalf("%d are left", len(sent))
	}
}

// An output is never given up for losses that are not blamed on the outputs in flight: the broker
// or the network may have failed.
func TestOutputsSurviveLossesThatAreNotTheirFault(t *testing.T) {
	q := newTestQueue(false)
	q.push(reply("press", "c"))
	for range 10 {
		if sent := sendUntilWait(q); len(sent) != 1 {
			t.Fatal("it is gone")
		}
		if lose(q, false) != nil {
			t.Fatal("given up")
		}
	}
}

// If the broker does not vouch for client ids, the penalty goes by the response topic: the client
// id in the request may belong to another client.
func TestForgedClientIDPenalizesNobody(t *testing.T) {
	q := newTestQueue(false)
	poison, victims := reply("press", "poison"), reply("press", "clients/press/r")
	q.push(poison)
	q.push(victims)
	for range 2 {
		sendUntilWait(q)
		lose(q, true)
	}
	if sent := sendUntilWait(q); len(sent) != 1 || sent[0] != victims {
		t.Errorf("%d are left, want the reply on another topic", len(sent))
	}
}

// Beyond a bound of the queue, push gives up the oldest notifications and frees their values. It
// gives up no reply, and never the newest notification.
func TestQueueGivesUpTheOldestNotifications(t *testing.T) {
	for name, test := range map[string]struct {
		bytes   []int // sizes of the notifications' values, in the order of push
		dropped int   // how many of the oldest are given up
	}{
		"too many":           {[]int{1, 1, 1, 1, 1}, 2},
		"too large":          {[]int{400 << 10, 400 << 10, 400 << 10}, 1},
		"one is too large":   {[]int{1, 2 << 20}, 1},
		"within both bounds": {[]int{300 << 10, 300 << 10, 300 << 10}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			q := newTestQueue(false)
			q.push(reply("c", "r"))
			var events, dropped []*Output
			for _, size := range test.bytes {
				events = append(events,
					&Output{Event: &fsm.Event{Value: strings.Repeat("x", size)}})
				dropped = append(dropped, q.push(events[len(events)-1])...)
			}
			if !slices.Equal(dropped, events[:test.dropped]) {
				t.Fatalf("%d dropped, want %d", len(dropped), test.dropped)
			}
			if slices.ContainsFunc(dropped, func(o *Output) bool { return o.Event != nil }) {
				t.Error("a value is still in memory")
			}
			if sent := sendUntilWait(q); len(sent) != 1+len(events)-test.dropped ||
				sent[1] != events[test.dropped] || len(q.notifications) != 0 || q.bytes != 0 {
				t.Errorf("%d sent", len(sent))
			}
		})
	}
}

// What was in flight when a connection ended goes first on the next one, unless the broker has it.
func TestQueueKeepsTheOrderAcrossConnections(t *testing.T) {
	q := newTestQueue(false)
	first, second, third := reply("a", "1"), reply("b", "2"), reply("c", "3")
	q.push(first)
	q.push(second)
	sendUntilWait(q)
	q.push(third)
	q.finish(first)
	_ = lose(q, false)
	if sent := sendUntilWait(q); !slices.Equal(sent, []*Output{second, third}) {
		t.Errorf("%d sent again", len(sent))
	}
}
