package mosquitto

import (
	"testing"
	"time"

	"holdfast/mqttfront/presence"
)

// The lines of 2.0.11 were written down from Debian's broker and the texts in its binary; those of
// 2.1 from its source.
func TestMosquittoLogLinesAreParsed(t *testing.T) {
	const connected, gone, taken = presence.Connected, presence.Disconnected, presence.TakenOver
	for _, test := range []struct {
		old  bool // the broker is known to be older than 2.1
		line string
		kind presence.Kind // 0 if the line is no event of a client
		id   string
	}{
		{true, "1795315848: New client connected from 127.0.0.1:45946 as press 1 (p5, c1, k60, u'press').", connected, "press 1"},
		{
			true, "1795315848: New client connected from 127.0.0.1:45946 as press (p2, c0, k60).",
			connected, "press",
		},
		{false, "2026-11-22T02:50:48: New connection from 127.0.0.1:1 on port 1883.", 0, ""},
		{true, "1795315848: New connection from 127.0.0.1:45954 on port 24883.", 0, ""},
		{
			true, "1795315849: Client press 1 been disconnected by administrative action.", gone,
			"press 1",
		},
		{true, "1795315849: Client press closed its connection.", gone, "press"},
		{true, "1795315849: Client press disconnected.", gone, "press"},
		{true, "Client press has exceeded timeout, disconnecting.", gone, "press"},
		// another client failed to log in with this client id
		{true, "Client press disconnected, not authorised.", 0, ""},
		{false, "Client press [1.2.3.4:5] disconnected: not authorised.", 0, ""},
		{
			true, "Client press disconnected due to using not allowed feature (QoS too high).",
			gone,
			"press",
		},
		{false, "1795315849: Client press [127.0.0.1:4711] disconnected.", gone, "press"},
		{false, "1795315849: Client press [127.0.0.1:4711] disconnected: bad socket read/write: The connection was lost", gone, "press"},
		{false, "1795315849: Client press disconnected.", gone, "press"},
		{false, "Client press disconnected, session taken over.", taken, "press"},
		{true, "2026-11-22T02:50:48: Client press closed its connection.", gone, "press"},
		{true, "Client press disconnected due to protocol error.", gone, "press"},
		{true, "Client press disconnected: Protocol error.", gone, "press"},
		{true, "Client press disconnected: Connection reset by peer.", gone, "press"},
		{true, "Bad socket read/write on client press: Unknown error.", gone, "press"},
		{true, "Client <unknown> disconnected, not authorised.", 0, ""},
		{false, "1795315849: Client press [127.0.0.1:4711] disconnected: connection closed by client.", gone, "press"},
		{
			false, "1795315849: Client press [[::1]:4711] disconnected: exceeded timeout.", gone,
			"press",
		},
		{
			false, "1795315849: Client press [127.0.0.1:4711] disconnected: session taken over.",
			taken, "press",
		},
		{
			false, "1795315849: New client connected from 127.0.0.1:4711 as press (p5, c1, k60).",
			connected, "press",
		},
		{true, "Outgoing messages are being dropped for client press.", 0, ""},
		// Client ids that contain the text of a log line: only the text after the id counts.
		{true, "Client victim disconnected. closed its connection.", gone, "victim disconnected."},
		{
			true, "Client victim disconnected due to protocol error. disconnected.", gone,
			"victim disconnected due to protocol error.",
		},
		{true, "Client victim [1.2.3.4:5] disconnected: connection closed by client. closed its connection.", gone, "victim [1.2.3.4:5] disconnected: connection closed by client."},
		{
			true, "Client victim [1.2.3.4:5] disconnected: Connection reset by peer.", gone,
			"victim [1.2.3.4:5]",
		},
		{
			true, "Client victim disconnected: x disconnected: Connection reset by peer.", gone,
			"victim disconnected: x",
		},
		{false, "Client victim [1.2.3.4:5] disconnected: x. [5.6.7.8:9] disconnected: connection closed by client.", gone, "victim [1.2.3.4:5] disconnected: x."},
		{
			true, "New client connected from 1.2.3.4:5 as victim (p5, c1, k60). (p5, c1, k60, u'u').",
			connected, "victim (p5, c1, k60).",
		},
	} {
		t.Run(test.line, func(t *testing.T) {
			event, ok := readLog(test.line, test.old)
			if ok != (test.kind != 0) || ok &&
				(event.Kind != test.kind || event.ClientID != test.id) {
				t.Errorf("%q: %v %+v", test.line, ok, event)
			}
		})
	}
}

func TestOldMosquittoVersionsAreRecognized(t *testing.T) {
	for version, old := range map[string]bool{
		"mosquitto version 2.0.11": true, "mosquitto version 1.6.9": true,
		"mosquitto version 2.1.2": false, "mosquitto version 3.0.0": false, "": false,
	} {
		t.Run(version, func(t *testing.T) {
			if isBefore21(version) != old {
				t.Errorf("%q: %v", version, !old)
			}
		})
	}
}

func TestMosquittoTopicsAreParsed(t *testing.T) {
	d := New(presence.Config{Wall: func() int64 { return 0 }})
	for _, test := range []struct {
		topic, payload string
		retained       bool
		want           presence.Event
	}{
		{
			"$SYS/broker/connection/client/line/1/press/state", "0", true,
			presence.Event{Kind: presence.Disconnected, ClientID: "line/1/press"},
		},
		{
			"$SYS/broker/connection/client/press/state", "0", false,
			presence.Event{Kind: presence.Disconnected, ClientID: "press"},
		},
		{
			"$SYS/broker/connection/client/press/state", "1", false,
			presence.Event{Kind: presence.Connected, ClientID: "press"},
		},
		{
			"$SYS/broker/connection/client/press/state", "1", true,
			presence.Event{Kind: presence.Present, ClientID: "press"},
		},
		{"$SYS/broker/connection/client/press/state", "2", false, presence.Event{}},
		{"$SYS/broker/connection/client//state", "0", false, presence.Event{}},
		{
			"$SYS/broker/uptime", "17 seconds", false,
			presence.Event{Kind: presence.Uptime, Ago: 19 * time.Second},
		},
		{"$SYS/broker/uptime", "17 seconds", true, presence.Event{}},
		{"$SYS/broker/uptime", "long", false, presence.Event{}},
	} {
		t.Run(test.topic, func(t *testing.T) {
			if event, ok := d.Read(test.topic, []byte(test.payload),
				test.retained); event != test.want || ok != (test.want != presence.Event{}) {
				t.Errorf("%s %q: %+v", test.topic, test.payload, event)
			}
		})
	}
}

// readLog finds the client id in a line, whatever text the id contains, and reads any text without
// a panic. A line that looks like a refused login is no event.
func FuzzReadLog(f *testing.F) {
	for _, id := range []string{
		"press", "victim disconnected.", "a [1.2.3.4:5] disconnected: x.",
		" ", "(p5, c1, k60).",
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		for _, r := range id {
			if r < ' ' || r == 0x7f {
				return // Mosquitto refuses control characters
			}
		}
		if len(id) > 256 {
			return
		}
		readLog(id, true)
		readLog(id, false)
		if id == "" || id == "<unknown>" {
			return
		}
		for _, line := range []struct {
			text string
			old  bool
		}{
			{"1: Client " + id + " closed its connection.", true},
			{"1: Client " + id + " disconnected.", true},
			{"1: Client " + id + " disconnected: Connection reset by peer.", true},
			{
				"1: Client " + id + " [127.0.0.1:1] disconnected: connection closed by client.",
				false,
			},
			{
				"1: New client connected from 127.0.0.1:1 as " + id + " (p5, c1, k60, u'user').",
				false,
			},
		} {
			if refusedLine.MatchString(line.text) {
				continue
			}
			if event, ok := readLog(line.text, line.old); !ok || event.ClientID != id {
				t.Errorf("%q: %v %+v", line.text, ok, event)
			}
		}
	})
}
