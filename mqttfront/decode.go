package mqttfront

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/policy"
)

// verdict says what to do with a message, in the order of checks of the protocol.
type verdict uint8

const (
	verdictExecute     verdict = iota // it is a command
	verdictAnswer                     // its answer is known without the log: a pure function of its bytes
	verdictIgnore                     // nothing can be answered
	verdictKick                       // not answered, and its publisher is to be disconnected
	verdictUnsupported                // answered with 505
)

// reasons for which a message is not executed, as they are counted.
const (
	reasonNoResponseTopic  = "no_response_topic"
	reasonBadResponseTopic = "bad_response_topic"
	reasonRetained         = "retained"
	reasonExpired          = "expired"
)

// maxPayload bounds what is looked at; a larger message is over the quota, whatever the settings are.
const maxPayload = 16 << 20

// properties are the user properties that mean something.
type properties struct {
	timestamp, token   string
	timestamps, tokens int // how often they occur
	sourceID, version  string
	trustedID          string
	hasTrustedID       bool
	username           string
	attributes         []policy.Attribute
	hasVersion         bool
}

// decode turns a message into a request. It is a pure function of the message, its arrival and the node's configuration.
func (f *Front) decode(message *paho.Publish, arrived time.Time) (*request, verdict, string) {
	topic := message.Properties.ResponseTopic
	if topic == "" {
		return nil, verdictIgnore, reasonNoResponseTopic
	}
	p := f.properties(message.Properties.User)
	r := &request{
		responseTopic: topic, correlation: message.Properties.CorrelationData, arrived: arrived, sent: arrived,
		size: messageSize(message),
	}
	r.command.Principal = policy.Principal{ClientID: f.clientID(&p, topic), Username: p.username, Attributes: p.attributes}
	if !validResponseTopic(topic) || !f.isOwnResponseTopic(topic, r.command.Principal.ClientID) {
		return r, verdictKick, reasonBadResponseTopic
	}
	if message.Retain {
		return nil, verdictIgnore, reasonRetained
	}
	expiry := f.config.DefaultExpiry
	if message.Properties.MessageExpiry != nil {
		expiry = time.Duration(*message.Properties.MessageExpiry) * time.Second
		r.deadline = arrived.Add(expiry)
		r.sent = r.deadline
		if expiry == 0 {
			return nil, verdictIgnore, reasonExpired
		}
	}
	worth := min(expiry, f.config.MaxExpiry)
	r.holdUntil = arrived.Add(worth)
	r.command.Lifetime = f.config.remembered(worth).Milliseconds()
	if p.hasVersion {
		r.command.Dialect = fsm.SDK
	}
	origin := f.world.Driver.Origin(message)
	r.command.BrokerTime = origin.Time
	r.command.ID = requestID(ownWord(p.sourceID, topic), message, p.timestamp, p.token)
	switch {
	case message.QoS != 1 || origin.QoS > 1:
		r.command.Error = fsm.ErrorQoS
		return r, verdictAnswer, ""
	case len(r.correlation) == 0:
		r.correlation = nil
		r.command.Error = fsm.ErrorMissingCorrelationData
		return r, verdictAnswer, ""
	case p.hasVersion && !supported(p.version):
		r.version = p.version
		return r, verdictUnsupported, ""
	case len(message.Payload) > maxPayload:
		r.command.Error = fsm.ErrorQuota
		return r, verdictAnswer, ""
	}
	parsePayload(message.Payload, &r.command)
	if r.command.Kind == 0 {
		return r, verdictAnswer, ""
	}
	r.read = r.command.Kind == fsm.KindGet
	f.addTimes(&r.command, &p)
	r.command.Unidentified = f.config.Identity.ClientIDProperty != "" && !p.hasTrustedID
	return r, verdictExecute, ""
}

// requestOverhead is what a request costs beyond its bytes.
const requestOverhead = 512

// messageSize returns about how much memory a request takes up.
func messageSize(message *paho.Publish) int {
	size := requestOverhead + len(message.Payload) + len(message.Properties.ResponseTopic) + len(message.Properties.CorrelationData)
	for i := range message.Properties.User {
		size += len(message.Properties.User[i].Key) + len(message.Properties.User[i].Value)
	}
	return size
}

func (f *Front) properties(user paho.UserProperties) (p properties) {
	identity := &f.config.Identity
	for i := range user {
		key, value := user[i].Key, user[i].Value
		switch {
		case key == "":
		case key == identity.ClientIDProperty:
			p.trustedID, p.hasTrustedID = value, value != ""
		case key == identity.UsernameProperty:
			p.username = value
		}
		switch key {
		case "__ts":
			p.timestamp = value
			p.timestamps++
		case "__ft":
			p.token = value
			p.tokens++
		case "__srcId":
			p.sourceID = value
		case "__protVer":
			p.version, p.hasVersion = value, value != ""
		}
		for _, name := range identity.AttributeProperties {
			if key == name {
				p.attributes = setAttribute(p.attributes, name, value)
			}
		}
	}
	return p
}

// setAttribute sets an attribute to the last value that was given: a broker that vouches for it appends its own.
func setAttribute(attributes []policy.Attribute, name, value string) []policy.Attribute {
	for i := range attributes {
		if attributes[i].Name == name {
			attributes[i].Value = value
			return attributes
		}
	}
	return append(attributes, policy.Attribute{Name: name, Value: value})
}

// clientID returns who asks: the broker's word, else the request's, else the response topic's, else nobody.
func (f *Front) clientID(p *properties, responseTopic string) string {
	switch {
	case f.config.Identity.ClientIDProperty != "":
		return p.trustedID
	default:
		return ownWord(p.sourceID, responseTopic)
	}
}

// ownWord returns who a request says that it comes from: its __srcId, else the response topic's, else nobody.
func ownWord(sourceID, responseTopic string) string {
	if sourceID != "" {
		return sourceID
	}
	if rest, ok := strings.CutPrefix(responseTopic, "clients/"); ok {
		if id, _, ok := strings.Cut(rest, "/"); ok {
			return id
		}
	}
	return ""
}

// maxTopicLevels is what the brokers that were looked at carry: EMQX 128 levels by default, Mosquitto 200. Mosquitto ends a connection that
// publishes on more.
const maxTopicLevels = 128

// notificationFilter returns the filter for all notifications of a client, with the single level for the key that the protocol's Rust library
// subscribes as well.
func notificationFilter(clientID string) string {
	return notificationPrefix + "/" + base16(clientID) + "/command/notify/+"
}

// validResponseTopic reports whether the store may publish there.
func validResponseTopic(topic string) bool {
	return strings.Count(topic, "/") < maxTopicLevels && topic != InvokeTopic && !strings.HasPrefix(topic, notificationPrefix) && !strings.HasPrefix(topic, "holdfast/") && topic[0] != '$' &&
		!strings.ContainsAny(topic, "+#\x00") && utf8.ValidString(topic)
}

// goResponse ends the response topics of the protocol's Go library, clients/{client id in upper-case Base16}/…. The id in Base16 may be the id
// of another client, which has no right to such a topic.
const goResponse = InvokeTopic + "/response"

// isOwnResponseTopic reports whether a client may have replies there. Who is known beyond doubt may not have the store write under another
// client's id: who reads there takes what comes for the store's answer to its own request.
func (f *Front) isOwnResponseTopic(topic, clientID string) bool {
	rest, ok := strings.CutPrefix(topic, "clients/")
	if !ok || !f.config.Identity.OwnResponses || f.config.Identity.ClientIDProperty == "" || clientID == "" { // who is nobody gets to know that he is not authorized
		return true
	}
	owner, below, _ := strings.Cut(rest, "/")
	if below == goResponse {
		return owner == base16(clientID)
	}
	return owner == clientID
}

// supported reports whether a protocol version is well-formed and of major version 1.
func supported(version string) bool {
	major, minor, ok := strings.Cut(version, ".")
	return ok && major == "1" && isNumber(minor)
}

func isNumber(text string) bool {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return false
	}
	_, err := strconv.ParseUint(text, 10, 32)
	return err == nil
}

// addTimes reads the timestamp and the fencing token, where the command uses them. A request that lacks one, or has a
// malformed one, is an error only if its sizes are in order, which the state machine decides.
func (f *Front) addTimes(command *fsm.Command, p *properties) {
	fail := func(code fsm.ErrorCode) {
		if command.LateError == fsm.NoError {
			command.LateError = code
		}
	}
	if command.Kind == fsm.KindSet {
		timestamp, err := hlc.Parse(p.timestamp)
		switch {
		case p.timestamps == 0:
			fail(fsm.ErrorMissingTimestamp)
		case p.timestamps > 1 || err != nil:
			fail(fsm.ErrorMalformedTimestamp)
		default:
			command.Timestamp = timestamp
		}
	}
	switch command.Kind {
	case fsm.KindSet, fsm.KindDel, fsm.KindVDel:
		if p.tokens == 0 {
			return
		}
		token, err := hlc.Parse(p.token)
		if p.tokens > 1 || err != nil {
			fail(fsm.ErrorMalformedTimestamp)
			return
		}
		command.Token = token
	}
}
