package mirror

import (
	"math"
	"strings"
	"unicode/utf8"

	"holdfast/internal/topics"
)

// topic is a topic of a mirror: what it begins with, and the key that follows.
type topic struct{ prefix, key string }

func (t topic) String() string { return t.prefix + t.key }

// clone returns the topic with memory of its own: a key of the state shares the memory of its value, and a key from a message that of the packet.
func (t topic) clone() topic { return topic{t.prefix, strings.Clone(t.key)} }

// maxLevels bounds the levels of a topic. EMQX carries 128 by default, Mosquitto 200; Mosquitto ends a connection that publishes on more.
const maxLevels = 128

// isValid reports whether the topic may be published.
func (t topic) isValid() bool {
	name := t.String()
	return len(name) <= math.MaxUint16 && strings.Count(name, "/") < maxLevels && utf8.ValidString(name) &&
		!strings.ContainsAny(name, "+#") && !topics.HasDisallowedCharacters(name)
}

// topicOf returns a topic by its name, if a prefix begins it. No prefix begins another one.
func topicOf(name string, prefixes []string) (topic, bool) {
	for _, prefix := range prefixes {
		if key, ok := strings.CutPrefix(name, prefix); ok {
			return topic{prefix, key}, true
		}
	}
	return topic{}, false
}
