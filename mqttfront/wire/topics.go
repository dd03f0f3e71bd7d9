package wire

import (
	"strings"
	"unicode/utf8"

	"holdfast/internal/topics"
)

const (
	// goResponse is the suffix of the response topics of the protocol's Go library: clients/{client
	// id in upper-case Base16}/{goResponse}. Another client may have those Base16 digits as its
	// plain id; it must not receive replies on such a topic.
	goResponse = topics.Invoke + "/response"
	// maxTopicLevels bounds the levels of a response topic. EMQX carries 128 levels by default,
	// Mosquitto 200; Mosquitto ends a connection that publishes on more.
	maxTopicLevels = 128
)

// isResponseTopic reports whether the store may publish replies on a topic, which is not empty.
func isResponseTopic(topic string) bool {
	return strings.Count(topic, "/") < maxTopicLevels && topic != topics.Invoke &&
		!strings.HasPrefix(topic, topics.ReservedPrefix) &&
		!strings.HasPrefix(topic, "holdfast/") && topic[0] != '$' &&
		!strings.ContainsAny(topic, "+#\x00") && utf8.ValidString(topic)
}

// belongsTo reports whether a response topic belongs to a client: whether it is under clients/ and
// the client's id.
func belongsTo(topic, clientID string) bool {
	rest, ok := strings.CutPrefix(topic, "clients/")
	if !ok {
		return false
	}
	owner, below, _ := strings.Cut(rest, "/")
	if below == goResponse {
		return owner == topics.Base16(clientID)
	}
	return owner == clientID
}

// clientOf returns the level after clients/ if a further level follows it, else an empty string. It
// does not decode Base16: for a response topic of the Go library it returns the encoded client id.
func clientOf(topic string) string {
	if rest, ok := strings.CutPrefix(topic, "clients/"); ok {
		if id, _, ok := strings.Cut(rest, "/"); ok {
			return id
		}
	}
	return ""
}
