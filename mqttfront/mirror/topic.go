package mirror

import (
	"cmp"
	"math"
	"strings"
	"unicode/utf8"

	"holdfast/internal/topics"
)

// topic is a topic of a mirror: the prefix that the mirror sets, and the key that follows.
type topic struct{ prefix, key string }

func (t topic) String() string { return t.prefix + t.key }

// clone returns a copy of the topic that can be kept. Without the copy, a key of the state would
// keep its value in memory, and a key of a message its packet.
func (t topic) clone() topic { return topic{t.prefix, strings.Clone(t.key)} }

// compare orders topics.
func (t topic) compare(other topic) int {
	return cmp.Or(strings.Compare(t.prefix, other.prefix), strings.Compare(t.key, other.key))
}

// maxLevels bounds the levels of a topic. By default EMQX allows 128 and Mosquitto 200. Mosquitto
// ends a connection that publishes on more.
const maxLevels = 128

// isValid reports whether the topic may be published.
func (t topic) isValid() bool {
	name := t.String()
	return len(name) <= math.MaxUint16 && strings.Count(name, "/") < maxLevels &&
		utf8.ValidString(name) &&
		!strings.ContainsAny(name, "+#") && !topics.HasDisallowedCharacters(name)
}

// topicOf splits a topic's name into one of the prefixes and a key. It returns false if the name
// begins with none of them. No prefix begins another one.
func topicOf(name string, prefixes []string) (topic, bool) {
	for _, prefix := range prefixes {
		if key, ok := strings.CutPrefix(name, prefix); ok {
			return topic{prefix, key}, true
		}
	}
	return topic{}, false
}
