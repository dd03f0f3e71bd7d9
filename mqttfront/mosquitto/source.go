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
	// retained: on a new session it arrives before any log line
	versionTopic = "$SYS/broker/version"
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
		d.before21.Store(isBefore21(string(payload)))
		return presence.Event{}, false
	case logTopic:
		return readLog(string(payload), d.before21.Load())
	case uptimeTopic:
		return readUptime(string(payload), retained)
	default:
		return readState(topic, string(payload), retained)
	}
}

// Patterns for log lines about connections. A client id may contain the text of such a line, so its
// group is greedy: the id ends at the last match of what follows it. Two limits remain. A user name
// that looks like the end of connectedLine falsifies the client id of its connect. The disconnects
// of a client whose id looks like refusedLine are missed.
var (
	connectedLine = regexp.MustCompile(
		`^(?:\S+: )?New client connected from \S+ as (.*) \(p\d+, c\d+, k\d+(?:, u'.*')?\)\.$`)

	// Mosquitto 2.0 and 2.1.0: no address in the line.
	goneLine = regexp.MustCompile(`^(?:\S+: )?Client (.*)(?:` + strings.Join([]string{
		` closed its connection\.`,
		` disconnected\.`,
		` has exceeded timeout, disconnecting\.`,
		` been disconnected by administrative action\.`,
		` disconnected due to (?:malformed packet|protocol error|oversize packet|oversize payload|out of memory|QoS too high or retain not supported)\.`,
		` disconnected due to using not allowed feature \([^()]*\)\.`,
	}, "|") + `)$`)
	// Mosquitto 2.0: the reason is the operating system's error text.
	failedLine = regexp.MustCompile(
		`^(?:\S+: )?(?:Client (.*) disconnected: [^:]*\.|Bad socket read/write on client (.*): [^:]*)$`)
	// A failed login. The client id may belong to another, connected client, so this is not its
	// disconnect. Mosquitto 2.0 usually logs <unknown> as the client id.
	refusedLine = regexp.MustCompile(
		`^(?:\S+: )?Client .* disconnected[:,] (?:not authorised|bad username or password|banned|.*authenti).*$`)

	// Mosquitto 2.1.1 and later: the address stands between the client id and the reason. A session
	// takeover may come without it.
	takenOverLine = regexp.MustCompile(
		`^(?:\S+: )?Client (.*)(?: \[\S+\] disconnected:| disconnected,) session taken over\.$`)
	endedLine = regexp.MustCompile(`^(?:\S+: )?Client (.*) \[\S+\] disconnected(?:: .*|\.)$`)
)

type linePattern struct {
	pattern *regexp.Regexp
	kind    presence.Kind
}

// readLog parses a line of the log. before21 says that the broker is known to be older than 2.1.
// refusedLine comes before the patterns for disconnects, which match its lines, too.
func readLog(text string, before21 bool) (presence.Event, bool) {
	const none = presence.Kind(0)
	lines := []linePattern{
		{connectedLine, presence.Connected},
		{refusedLine, none},
		{takenOverLine, presence.TakenOver},
		{endedLine, presence.Disconnected},
		{goneLine, presence.Disconnected},
	}
	if before21 {
		lines = []linePattern{
			{connectedLine, presence.Connected},
			{refusedLine, none},
			{goneLine, presence.Disconnected},
			{failedLine, presence.Disconnected},
		}
	}
	for _, l := range lines {
		found := l.pattern.FindStringSubmatch(strings.TrimRight(text, "\r\n"))
		if found == nil {
			continue
		}
		clientID := strings.Join(found[1:], "") // failedLine has two groups, of which one is empty
		return presence.Event{Kind: l.kind, ClientID: clientID}, l.kind != none &&
			clientID != "<unknown>"
	}
	return presence.Event{}, false
}

// isBefore21 reports whether a version, as "mosquitto version 2.0.11", is before 2.1.
func isBefore21(version string) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "mosquitto version %d.%d", &major, &minor)
	return err == nil && (major < 2 || major == 2 && minor < 1)
}

// readUptime reads how long the broker has been up. A retained message may be as old as
// sys_interval, or from before a restart.
func readUptime(text string, retained bool) (presence.Event, bool) {
	number, _, _ := strings.Cut(text, " ")
	seconds, err := strconv.ParseInt(number, 10, 32)
	if err != nil || retained {
		return presence.Event{}, false
	}
	const rounding = 2 * time.Second // the broker reports whole seconds; Ago is an upper bound
	return presence.Event{Kind: presence.Uptime, Ago: time.Duration(seconds)*time.Second +
		rounding}, true
}

// readState reads a client's state: 1 is connected, 0 is not. A session takeover is 0 and then 1.
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
