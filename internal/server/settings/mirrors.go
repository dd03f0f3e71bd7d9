package settings

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"holdfast/fsm"
	"holdfast/internal/glob"
	"holdfast/internal/topics"
)

// Mirrors is the setting "mirrors": the keys that the leader publishes as retained messages. In
// text it is a list of pattern=topic/ with commas between. In a file it may also be a YAML list
// whose elements have keys and topic.
type Mirrors []fsm.Mirror

// Set implements Value.
func (l *Mirrors) Set(value string) error {
	var elements list
	if err := elements.Set(value); err != nil {
		return err
	}
	*l = nil
	for _, element := range elements {
		split := strings.LastIndexByte(element, '=')
		if split < 0 {
			return errors.New("want elements of the form pattern=topic/")
		}
		*l = append(*l, fsm.Mirror{Keys: element[:split], Topic: element[split+1:]})
	}
	return nil
}

// String implements Value.
func (l *Mirrors) String() string {
	elements := make(list, len(*l))
	for i, mirror := range *l {
		elements[i] = mirror.Keys + "=" + mirror.Topic
	}
	return elements.String()
}

// Type implements Value.
func (l *Mirrors) Type() string { return "list" }

// setFromFile sets the list from the elements of a YAML list: each has keys and topic, and nothing
// else.
func (l *Mirrors) setFromFile(elements []any) error {
	*l = nil
	for _, element := range elements {
		fields, isMap := element.(map[string]any)
		keys, hasKeys := fields["keys"].(string)
		topic, hasTopic := fields["topic"].(string)
		if !isMap || !hasKeys || !hasTopic || len(fields) != 2 {
			return errors.New("want a list of {keys: pattern, topic: what the topic begins with}")
		}
		*l = append(*l, fsm.Mirror{Keys: keys, Topic: topic})
	}
	return nil
}

// shown returns the list in the form of a YAML list.
func (l *Mirrors) shown() []map[string]string {
	elements := make([]map[string]string, len(*l))
	for i, mirror := range *l {
		elements[i] = map[string]string{"keys": mirror.Keys, "topic": mirror.Topic}
	}
	return elements
}

func (s *Settings) validateMirrors() error {
	text := func(m fsm.Mirror) string { return m.Keys + "=" + m.Topic }
	if len(s.Mirrors) > fsm.MaxMirrors {
		return &Error{
			"mirrors", s.Mirrors.String(),
			fmt.Sprintf("must not have more than %d elements", fsm.MaxMirrors),
		}
	}
	for i, mirror := range s.Mirrors {
		if _, err := glob.Compile(mirror.Keys); err != nil {
			return &Error{"mirrors", text(mirror), err.Error()}
		}
		if fault := topicFault(mirror.Topic); fault != "" {
			return &Error{"mirrors", text(mirror), fault}
		}
		for _, other := range s.Mirrors[:i] {
			if other.Topic != mirror.Topic &&
				(strings.HasPrefix(other.Topic, mirror.Topic) ||
					strings.HasPrefix(mirror.Topic, other.Topic)) {
				return &Error{"mirrors", text(mirror), "its topics lie among those of " +
					text(other) + ": two keys could have the same one"}
			}
		}
	}
	return nil
}

// topicFault returns why a mirror's topics must not begin with topic, or an empty string if they
// may.
func topicFault(topic string) string {
	switch {
	case !strings.HasSuffix(topic, "/") || topic == "/":
		// so that topic+"#" is a topic filter that matches only these topics
		return "the topic must end with '/', and have something before it"
	case topic[0] == '$' || strings.ContainsAny(topic, "+#\x00=") || !utf8.ValidString(topic):
		return "the topic must be UTF-8, not begin with '$', and have none of + # = in it"
	case topics.HasDisallowedCharacters(topic) || strings.Count(topic, "/") > maxMirrorLevels:
		return fmt.Sprintf("the topic must have no control characters and no code points that are no characters, and not more than %d levels", maxMirrorLevels)
	case len(topic) > maxMirrorTopic:
		return fmt.Sprintf("the topic must not have more than %d bytes", maxMirrorTopic)
	}
	for _, own := range []string{
		"clients/", "holdfast/",
		topics.Invoke[:strings.IndexByte(topics.Invoke, '/')+1],
	} {
		if strings.HasPrefix(topic, own) {
			return "topics that begin with " + own +
				" are those of requests, replies and notifications"
		}
	}
	return ""
}

// maxMirrorTopic and maxMirrorLevels bound the prefix of a mirror's topics, in bytes and in levels.
// Brokers take 128 levels; the key needs some of them.
const (
	maxMirrorTopic  = 1024
	maxMirrorLevels = 64
)
