package presence

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast/mqttfront/broker"
)

// newTestLedger returns a ledger and what it has reported.
func newTestLedger() (*ledger, *[]broker.Disconnect) {
	var disconnects []broker.Disconnect
	l := newLedger()
	l.report = func(d broker.Disconnect) { disconnects = append(disconnects, d) }
	return l, &disconnects
}

const slack = int64(Slack / time.Millisecond)

// A disconnect is reported at once, with the time of the last marker less Slack. A marker is a
// message that the node sends to itself through the broker. The disconnect is reported again if the
// client has not reconnected when a marker returns that was sent recheckAfter later.
func TestDisconnectIsReportedAgainWhenTheClientStaysAway(t *testing.T) {
	l, disconnects := newTestLedger()
	l.begin(1_000, false)
	l.marker(2_000)
	l.event(Event{Kind: Disconnected, ClientID: "a"}, 2_500)
	l.marker(3_000)
	l.marker(5_100)
	l.marker(6_000)
	want := []broker.Disconnect{
		{ClientID: "a", Time: 2_000 - slack},
		{ClientID: "a", Time: 5_100 - slack},
	}
	if !slices.Equal(*disconnects, want) {
		t.Errorf("%+v", *disconnects)
	}
}

// † No disconnect is reported with a time after the client's reconnect, in whatever order the
// events arrive.
func TestReturnedClientIsNotReportedAsDisconnected(t *testing.T) {
	for name, events := range map[string][]Event{
		"gone and back": {
			{Kind: Disconnected, ClientID: "a"},
			{Kind: Connected, ClientID: "a"},
		},
		"taken over": {
			{Kind: Connected, ClientID: "a"},
			{Kind: TakenOver, ClientID: "a"},
		},
		"states at the beginning": {
			{Kind: Disconnected, ClientID: "a"},
			{Kind: Present, ClientID: "a"},
		},
		"end of the old one after all": {
			{Kind: Connected, ClientID: "a", Connection: 2},
			{Kind: Disconnected, ClientID: "a", Connection: 1},
		},
		"takeover after the connection": {
			{Kind: Connected, ClientID: "a", Connection: 2},
			{Kind: TakenOver, ClientID: "a", Connection: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, disconnects := newTestLedger()
			l.begin(1_000, false)
			l.marker(2_000)
			for _, e := range events {
				l.event(e, 2_500)
			}
			for sent := int64(3_000); sent < 20_000; sent += 1_000 {
				l.marker(sent)
			}
			for _, d := range *disconnects {
				if d.Time > 2_000-slack {
					t.Errorf("reported as disconnected at %d", d.Time)
				}
			}
		})
	}
}

// The disconnect of a client is reported after a takeover, even if the number of its current
// connection is lower than that of the old one. In a broker cluster, the clock of the old
// connection's node may be ahead.
func TestDisconnectAfterATakeoverIsReportedWhateverTheClocksOfTheBrokersSay(t *testing.T) {
	connected, taken := Event{Kind: Connected, ClientID: "a", Connection: 102},
		Event{Kind: TakenOver, ClientID: "a", Connection: 105}
	for name, events := range map[string][]Event{
		"connected first":  {connected, taken},
		"taken over first": {taken, connected},
	} {
		t.Run(name, func(t *testing.T) {
			l, disconnects := newTestLedger()
			l.begin(1_000, false)
			l.event(Event{Kind: Connected, ClientID: "a", Connection: 105}, 1_500)
			for _, e := range events {
				l.event(e, 2_000)
			}
			l.marker(3_000)
			l.event(Event{Kind: Disconnected, ClientID: "a", Connection: 102}, 3_500)
			if last := (*disconnects)[len(*disconnects)-1]; last.Time != 3_000-slack {
				t.Errorf("%+v", *disconnects)
			}
		})
	}
}

// If the broker did not keep the session, the ledger forgets earlier disconnects: it may have
// missed the reconnects. If the session was kept, they are reported again.
func TestLostSessionForgetsEarlierEvents(t *testing.T) {
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("kept %v", kept), func(t *testing.T) {
			l, disconnects := newTestLedger()
			l.begin(1_000, false)
			l.event(Event{Kind: Disconnected, ClientID: "a"}, 1_500)
			l.begin(3_000, kept)
			if l.marker(9_000); len(*disconnects) != map[bool]int{false: 1, true: 2}[kept] {
				t.Errorf("kept: %v: %+v", kept, *disconnects)
			}
		})
	}
}

// A broker publishes its uptime repeatedly. Each start of the broker is reported once.
func TestBrokerStartIsReportedOnce(t *testing.T) {
	l, disconnects := newTestLedger()
	l.marker(100_000)
	l.event(Event{Kind: Uptime, Ago: 10 * time.Second}, 100_500)
	l.marker(110_400)
	l.event(Event{Kind: Uptime, Ago: 20 * time.Second}, 110_500)
	l.marker(200_000)
	// the event was queued for a minute
	l.event(Event{Kind: Uptime, Ago: 5 * time.Second}, 260_000)
	// a thousandth of the uptime earlier
	want := []broker.Disconnect{
		{Everyone: true, Time: 90_000 - slack - 10},
		{Everyone: true, Time: 195_000 - slack - 5},
	}
	if !slices.Equal(*disconnects, want) {
		t.Errorf("%+v", *disconnects)
	}
}

// A broker whose clock is slower than the node's, or stood still for a while, does not count as
// restarted. The one report is of its true start or earlier, so watches that clients made since
// then stay.
func TestBrokerClockThatLagsIsNoStart(t *testing.T) {
	const start, interval = int64(1_000_000), 10_000
	for name, row := range map[string]struct {
		first  int64                 // age of the broker when the node gets the first event
		uptime func(age int64) int64 // the uptime that the broker publishes at an age
	}{
		"slow by 50 ppm": {interval, func(age int64) int64 { return age - age/20_000 }},
		"slow by 50 ppm, and the node starts late": {
			7 * 24 * 3_600_000,
			func(age int64) int64 { return age - age/20_000 },
		},
		"suspended for half a minute": {interval, func(age int64) int64 {
			return max(min(age, 3_600_000), age-30_000)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l, disconnects := newTestLedger()
			l.begin(start+row.first-500, false)
			for age := row.first; age < row.first+7*24*3_600_000; age += interval {
				l.marker(start + age - 50)
				l.event(Event{Kind: Uptime, Ago: time.Duration(row.uptime(age)) * time.Millisecond},
					start+age)
			}
			if len(*disconnects) != 1 || (*disconnects)[0].Time > start {
				t.Errorf("%+v, and the broker started at %d", *disconnects, start)
			}
		})
	}
}

// A restart while the node was away is recognized by the uptime, even if it is longer than the last
// one before.
func TestBrokerStartThatNobodySawIsReported(t *testing.T) {
	l, disconnects := newTestLedger()
	l.marker(100_000)
	l.event(Event{Kind: Uptime, Ago: 10 * time.Second}, 100_500)
	l.begin(500_000, false) // the node was away
	l.event(Event{Kind: Uptime, Ago: 200 * time.Second}, 500_500)
	if len(*disconnects) != 2 {
		t.Errorf("%+v", *disconnects)
	}
}

func TestLedgerIsBounded(t *testing.T) {
	l, _ := newTestLedger()
	for i := range maxConnections + 10 {
		l.event(Event{Kind: Connected, ClientID: fmt.Sprint(i), Connection: 1}, 0)
	}
	for i := range maxRechecks + 10 {
		l.event(Event{Kind: Disconnected, ClientID: fmt.Sprint("x", i)}, 0)
	}
	if len(l.recheckAt) != maxRechecks || len(l.connections) != maxConnections {
		t.Errorf("%d absent, %d connections", len(l.recheckAt), len(l.connections))
	}
}

// A client connects and disconnects at random, and makes watches while it is connected. The
// broker's events and the markers arrive late, in the broker's order. No reported disconnect ends a
// watch whose connection has not ended. After the last disconnect, every watch is ended.
func TestNoWatchEndsEarly(t *testing.T) {
	type happening struct {
		at   int64 // at the broker
		kind string
	}
	rapid.Check(t, func(t *rapid.T) {
		// What the broker processes, in its order.
		var line []happening
		now, connected := int64(10_000), false
		for range rapid.IntRange(1, 40).Draw(t, "happenings") {
			now += rapid.Int64Range(1, 2_000).Draw(t, "pause")
			switch what := rapid.SampledFrom([]string{"connection", "marker", "watch"}).Draw(t,
				"what"); {
			case what == "connection" && connected && rapid.Bool().Draw(t, "taken over"):
				// Mosquitto 2.0 reports a takeover only as a connect
				line = append(line, happening{now, "connect"})
			case what == "connection":
				connected = !connected
				line = append(line,
					happening{
						now,
						map[bool]string{true: "connect", false: "disconnect"}[connected],
					})
			case what == "watch" && connected:
				line = append(line, happening{now, "watch"})
			default:
				line = append(line, happening{now, "marker"})
			}
		}
		if connected {
			line = append(line, happening{now + 1, "disconnect"})
		}
		for end := now + 10_000; now < end; {
			now += 1_000
			line = append(line, happening{now, "marker"})
		}

		l, disconnects := newTestLedger()
		l.begin(9_000, false)
		type watch struct{ stamp, from, to int64 }
		var watches []*watch
		arrived := int64(0)
		for _, h := range line {
			delay := rapid.Int64Range(0, 1_500).Draw(t, "delay")
			arrived = max(arrived, h.at+delay)
			switch h.kind {
			case "watch": // by another connection, with a delay of its own
				watches = append(watches,
					&watch{
						stamp: h.at + rapid.Int64Range(0, 400).Draw(t, "request") + slack,
						from:  h.at, to: 1 << 60,
					})
			case "marker":
				l.marker(h.at - rapid.Int64Range(0, 400).Draw(t, "sent"))
			case "connect", "disconnect":
				for _, w := range watches {
					w.to = min(w.to, h.at)
				}
				kind := map[string]Kind{"connect": Connected, "disconnect": Disconnected}[h.kind]
				l.event(Event{Kind: kind, ClientID: "a"}, arrived)
			}
			for _, d := range *disconnects {
				for _, w := range watches {
					if d.Time >= w.stamp && w.to > h.at {
						t.Fatalf("a disconnect at %d ended a watch of %d", d.Time, w.from)
					}
				}
			}
		}
		for _, w := range watches {
			if !slices.ContainsFunc(*disconnects,
				func(d broker.Disconnect) bool { return d.Time >= w.stamp }) {
				t.Fatalf("a watch of %d was never ended: %+v", w.from, *disconnects)
			}
		}
	})
}
