package wire

import (
	"strconv"
	"strings"

	"holdfast/internal/mqttconn"

	"holdfast/internal/policy"
)

// Identity names the user properties by which a broker reports who published a message.
type Identity struct {
	// empty if the broker reports no client id: then the request's own claim counts
	ClientIDProperty    string
	UsernameProperty    string
	AttributeProperties []string
	// OwnResponses forbids response topics that are not under clients/{the client's id}. It has no
	// effect without ClientIDProperty.
	OwnResponses bool
}

// StoreProperty is the user property of a request by which a node asks whether another store is at
// the broker, and of the answer. Its value is the name of the cluster, a slash, and that of the
// node (package exclusive).
const StoreProperty = "holdfast-store"

// properties are the user properties of a request that have a meaning.
type properties struct {
	timestamp, token   string
	timestamps, tokens int // how often they occur
	sourceID, version  string
	trustedID          string // the client id that the broker reports; empty if it reports none
	username           string
	attributes         []policy.Attribute
	asksForStore       bool // it has StoreProperty
}

func (i *Identity) read(user mqttconn.UserProperties) (p properties) {
	for n := range user {
		key, value := user[n].Key, user[n].Value
		switch {
		case key == "":
		case key == i.ClientIDProperty:
			p.trustedID = value
		case key == i.UsernameProperty:
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
			p.version = value
		case StoreProperty:
			p.asksForStore = true
		}
		for _, name := range i.AttributeProperties {
			if key == name {
				p.attributes = setAttribute(p.attributes, name, value)
			}
		}
	}
	return p
}

// setAttribute sets an attribute. The last value counts: a broker that vouches for the attribute
// appends its own.
func setAttribute(attributes []policy.Attribute, name, value string) []policy.Attribute {
	for i := range attributes {
		if attributes[i].Name == name {
			attributes[i].Value = value
			return attributes
		}
	}
	return append(attributes, policy.Attribute{Name: name, Value: value})
}

// clientID returns the client id of a request: the one that the broker reports if ClientIDProperty
// is set, else the one that the request claims.
func (i *Identity) clientID(p *properties, responseTopic string) string {
	if i.ClientIDProperty != "" {
		return p.trustedID
	}
	return claimedID(p.sourceID, responseTopic)
}

// claimedID returns the client that a request claims to come from: its __srcId, else the client id
// in its response topic, else an empty string.
func claimedID(sourceID, responseTopic string) string {
	if sourceID != "" {
		return sourceID
	}
	return clientOf(responseTopic)
}

// mayUse reports whether a client may have replies on a response topic. With OwnResponses it must
// be the client's own: another client would take the reply for an answer to its own request, and
// some brokers end the leader's connection where their rules refuse a reply. A request without a
// client id passes: it is answered with "not authorized".
func (i *Identity) mayUse(topic, clientID string) bool {
	if !i.OwnResponses || i.ClientIDProperty == "" || clientID == "" {
		return true
	}
	return belongsTo(topic, clientID)
}

// isSupported reports whether a protocol version is well-formed and of major version 1.
func isSupported(version string) bool {
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
