package mosquitto

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"holdfast/mqttfront/presence"
)

const (
	versionTopic = "$SYS/broker/version" // retained, so it comes before all lines
	logTopic     = "$SYS/broker/log/N"
	uptimeTopic  = "$SYS/broker/uptime"
	statePrefix  = "$SYS/broker/connection/client/"
	stateSuffix  = "/state"
)

// Filters implements presence.Source.
func (d *Driver) Filters() []string {
	return []string{versionTopic, logTopic, uptimeTopic, statePrefix + "#", responseTopic}
}

// Read implements presence.Source.
func (d *Driver) Read(topic string, payload []byte, retained bool) (presence.Event, bool) {
	switch topic {
	case responseTopic:
		if !retained {
			d.answered(payload)
		}
		return presence.Event{}, false
	case versionTopic:
		d.old.Store(isOld(string(payload)))
		return presence.Event{}, false
	case logTopic:
		return readLog(string(payload), d.old.Load())
	case uptimeTopic:
		return readUptime(string(payload), retained)
	default:
		return readState(topic, string(payload), retained)
	}
}

// Lines of the log about connections. A client id may hold anything that such a line does, so the last end that fits counts: what is before
// it is the client id, and nothing that a client chooses stands behind that.
var (
	connectedLine = regexp.MustCompile(`^(?:\S+: )?New client connected from \S+ as (.*) \(p\d+, c\d+, k\d+(?:, u'.*')?\)\.$`)

	// Of 2.0, and of 2.1.0.
	goneLine = regexp.MustCompile(`^(?:\S+: )?Client (.*)(?:` + strings.Join([]string{
		` closed its connection\.`,
		` disconnected\.`,
		` has exceeded timeout, disconnecting\.`,
		` been disconnected by administrative action\.`,
		` disconnected due to (?:malformed packet|protocol error|oversize packet|oversize payload|out of memory|QoS too high or retain not supported)\.`,
		` disconnected due to using not allowed feature \([^()]*\)\.`,
	}, "|") + `)$`)
	// What the operating system says, of 2.0. In 2.1 there is an address before it.
	failedLine = regexp.MustCompile(`^(?:\S+: )?(?:Client (.*) disconnected: [^:]*\.|Bad socket read/write on client (.*): [^:]*)$`)
	// A login that failed, under the name of a client that may well be there. In 2.0 it has no name, as a rule.
	refusedLine = regexp.MustCompile(`^(?:\S+: )?Client .* disconnected[:,] (?:not authorised|bad username or password|banned|.*authenti).*$`)

	// Of 2.1.1 and later, which put the address between the client id and what happened.
	takenOverLine = regexp.MustCompile(`^(?:\S+: )?Client (.*)(?: \[\S+\] disconnected:| disconnected,) session taken over\.$`)
	endedLine     = regexp.MustCompile(`^(?:\S+: )?Client (.*) \[\S+\] disconnected(?:: .*|\.)$`)
)

type line struct {
	pattern *regexp.Regexp
	kind    presence.Kind
}

// readLog reads a line of the log, of a broker that is known to be older than 2.1 or not.
func readLog(text string, old bool) (presence.Event, bool) {
	const none = presence.Kind(0)
	lines := []line{{connectedLine, presence.Connected}, {refusedLine, none}, {takenOverLine, presence.TakenOver}, {endedLine, presence.Disconnected}, {goneLine, presence.Disconnected}}
	if old {
		lines = []line{{connectedLine, presence.Connected}, {refusedLine, none}, {goneLine, presence.Disconnected}, {failedLine, presence.Disconnected}}
	}
	for _, l := range lines {
		found := l.pattern.FindStringSubmatch(strings.TrimRight(text, "\r\n"))
		if found == nil {
			continue
		}
		clientID := strings.Join(found[1:], "") // of alternatives one is there
		return presence.Event{Kind: l.kind, ClientID: clientID}, l.kind != none && clientID != "<unknown>"
	}
	return presence.Event{}, false
}

// isOld reports whether a version, as "mosquitto version 2.0.11", is before 2.1.
func isOld(version string) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "mosquitto version %d.%d", &major, &minor)
	return err == nil && (major < 2 || major == 2 && minor < 1)
}

// readUptime reads how long the broker has been up. A retained one may be as old as sys_interval, or from before a restart.
func readUptime(text string, retained bool) (presence.Event, bool) {
	number, _, _ := strings.Cut(text, " ")
	seconds, err := strconv.ParseInt(number, 10, 32)
	if err != nil || retained {
		return presence.Event{}, false
	}
	const imprecise = 2 * time.Second // whole seconds, and the way here
	return presence.Event{Kind: presence.Started, Ago: time.Duration(seconds)*time.Second + imprecise}, true
}

// readState reads a client's state: 1 is connected, 0 is not. A take-over is 0 and then 1.
func readState(topic, payload string, retained bool) (presence.Event, bool) {
	clientID, ok := strings.CutPrefix(topic, statePrefix)
	clientID, isState := strings.CutSuffix(clientID, stateSuffix)
	event := presence.Event{ClientID: clientID}
	switch {
	case !ok || !isState || clientID == "":
		return presence.Event{}, false
	case payload == "0":
		event.Kind = presence.Disconnected
	case payload == "1" && retained:
		event.Kind = presence.Present
	case payload == "1":
		event.Kind = presence.Connected
	default:
		return presence.Event{}, false
	}
	return event, true
}
