package wire

import (
	"cmp"
	"time"

	"holdfast/internal/mqttconn"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/policy"
)

// Request is a decoded message.
type Request struct {
	ResponseTopic string
	Correlation   []byte // nil if there is none
	// the request's __protVer if that version is not supported; set only with VerdictUnsupported
	UnsupportedVersion string
	Command            fsm.Command
	Read               bool      // a GET or a SCAN
	Deadline           time.Time // when the message expires; zero if it has no message expiry
	Size               int       // approximate memory of the request, in bytes
	Store              string    // the reply's StoreProperty; empty for none
	Limit              string    // the reply's LimitProperty; empty for none
}

// Verdict is what a front end does with a message.
type Verdict uint8

const (
	VerdictExecute Verdict = iota // it is a command
	// the reply is an error that follows from the message alone: it needs no log entry
	VerdictAnswer
	VerdictIgnore      // it is not answered
	VerdictKick        // it is not answered, and its publisher is to be disconnected
	VerdictUnsupported // its reply has status 505
)

// Reasons why a message is ignored or its publisher kicked, for counting.
const (
	ReasonNoResponseTopic  = "no_response_topic"
	ReasonBadResponseTopic = "bad_response_topic"
	ReasonRetained         = "retained"
	ReasonExpired          = "expired"
)

// MaxPayload is the largest payload that is parsed, in bytes. A larger one is refused with
// ErrorQuota, whatever the limits are.
const MaxPayload = 16 << 20

// RequestOverhead is the approximate memory in bytes that a request needs in addition to the bytes
// of its message.
const RequestOverhead = 512

// Decoder turns messages into requests. It is safe for concurrent use.
type Decoder struct {
	Identity Identity
	// DefaultExpiry is how long after its arrival a request without a message expiry is answered.
	// MaxExpiry bounds this time for all requests.
	DefaultExpiry, MaxExpiry time.Duration
	// Margin is how long the dedup table (the outcomes of recent requests, by identity) keeps an
	// outcome after the request has expired.
	Margin time.Duration
	// Reserved reports whether a topic is reserved, in addition to the protocol's reserved topics.
	// A request with such a response topic gets VerdictKick. It must be safe for concurrent use.
	// nil reserves no further topic.
	Reserved func(topic string) bool
	// Store is what a request with StoreProperty is answered with.
	Store string
}

// Decode fills in r from a message that arrived at a time. r must be zero, except for
// Command.BrokerTime, which Decode does not touch. publisherQoS is the QoS with which the client
// published, as the broker reports it; 0 is unknown. For VerdictIgnore and VerdictKick, Decode
// returns the reason. For the other verdicts it returns ttl: how long the request is worth
// answering.
func (d *Decoder) Decode(message *mqttconn.Publish, arrived time.Time, publisherQoS byte,
	r *Request,
) (ttl time.Duration, verdict Verdict, reason string) {
	topic := message.Properties.ResponseTopic
	if topic == "" {
		return 0, VerdictIgnore, ReasonNoResponseTopic
	}
	p := d.Identity.read(message.Properties.User)
	r.ResponseTopic, r.Correlation, r.Size = topic, message.Properties.CorrelationData,
		messageSize(message)
	r.Command.Principal = policy.Principal{
		ClientID: d.Identity.clientID(&p, topic),
		Username: p.username, Attributes: p.attributes,
	}
	if !isResponseTopic(topic) || d.Reserved != nil && d.Reserved(topic) ||
		!d.Identity.mayUse(topic, r.Command.Principal.ClientID) {
		return 0, VerdictKick, ReasonBadResponseTopic
	}
	if message.Retain {
		return 0, VerdictIgnore, ReasonRetained
	}
	ttl = d.DefaultExpiry
	if message.Properties.MessageExpiry != nil {
		ttl = time.Duration(*message.Properties.MessageExpiry) * time.Second
		r.Deadline = arrived.Add(ttl)
		if ttl == 0 {
			return 0, VerdictIgnore, ReasonExpired
		}
	}
	ttl = min(ttl, d.MaxExpiry)
	r.Command.Lifetime = (ttl + d.Margin).Milliseconds()
	if p.version != "" {
		r.Command.Dialect = fsm.SDK
	}
	if p.asksForStore {
		r.Store = d.Store
	}
	r.Command.ID = requestID(claimedID(p.sourceID, topic), message, p.timestamp, p.token)
	return ttl, d.decodeCommand(message, &p, publisherQoS, r), ""
}

// decodeCommand checks the QoS, the Correlation Data, the protocol version and the size of a
// request, and parses its payload.
func (d *Decoder) decodeCommand(message *mqttconn.Publish, p *properties, publisherQoS byte,
	r *Request,
) Verdict {
	switch {
	case message.QoS != 1 || publisherQoS > 1:
		r.Command.Error = fsm.ErrorQoS
		return VerdictAnswer
	case len(r.Correlation) == 0:
		r.Correlation = nil
		r.Command.Error = fsm.ErrorMissingCorrelationData
		return VerdictAnswer
	case p.version != "" && !isSupported(p.version):
		r.UnsupportedVersion = p.version
		return VerdictUnsupported
	case len(message.Payload) > MaxPayload:
		r.Command.Error = fsm.ErrorQuota
		return VerdictAnswer
	}
	ParsePayload(message.Payload, &r.Command)
	if r.Command.Kind == 0 {
		return VerdictAnswer
	}
	r.Read = r.Command.Kind.IsRead()
	r.Size += len(r.Command.Operations) * fsm.OperationOverhead
	addTimes(&r.Command, p)
	r.Command.Unidentified = d.Identity.ClientIDProperty != "" && p.trustedID == ""
	return VerdictExecute
}

// messageSize returns the approximate memory of a request, in bytes.
func messageSize(message *mqttconn.Publish) int {
	size := RequestOverhead + len(message.Payload) + len(message.Properties.ResponseTopic) +
		len(message.Properties.CorrelationData)
	for i := range message.Properties.User {
		size += len(message.Properties.User[i].Key) + len(message.Properties.User[i].Value)
	}
	return size
}

// addTimes sets the timestamp and the fencing token of commands that use them. If the timestamp of
// a SET is missing, or a timestamp or token is malformed or repeated, it sets LateError. The state
// machine answers with that error only after the sizes were found valid. Each operation of a TXN
// gets the error that its command would get by itself.
func addTimes(command *fsm.Command, p *properties) {
	switch command.Kind {
	case fsm.KindSet:
		var badTimestamp, badToken fsm.ErrorCode
		command.Timestamp, badTimestamp = p.readTimestamp()
		command.Token, badToken = p.readToken()
		command.LateError = cmp.Or(badTimestamp, badToken)
	case fsm.KindDel, fsm.KindVDel:
		command.Token, command.LateError = p.readToken()
	case fsm.KindTxn:
		addTimesOfTxn(command, p)
	}
}

func addTimesOfTxn(command *fsm.Command, p *properties) {
	timestamp, badTimestamp := p.readTimestamp()
	token, badToken := p.readToken()
	for i := range command.Operations {
		switch operation := &command.Operations[i]; operation.Kind {
		case fsm.KindSet:
			command.Timestamp, command.Token = timestamp, token
			operation.LateError = cmp.Or(badTimestamp, badToken)
		case fsm.KindDel, fsm.KindVDel:
			command.Token, operation.LateError = token, badToken
		}
	}
}

func (p *properties) readTimestamp() (hlc.Timestamp, fsm.ErrorCode) {
	timestamp, err := hlc.Parse(p.timestamp)
	switch {
	case p.timestamps == 0:
		return hlc.Timestamp{}, fsm.ErrorMissingTimestamp
	case p.timestamps > 1 || err != nil:
		return hlc.Timestamp{}, fsm.ErrorMalformedTimestamp
	}
	return timestamp, fsm.NoError
}

func (p *properties) readToken() (hlc.Timestamp, fsm.ErrorCode) {
	if p.tokens == 0 {
		return hlc.Timestamp{}, fsm.NoError
	}
	token, err := hlc.Parse(p.token)
	if p.tokens > 1 || err != nil {
		return hlc.Timestamp{}, fsm.ErrorMalformedTimestamp
	}
	return token, fsm.NoError
}
