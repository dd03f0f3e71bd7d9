package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"holdfast/fsm"
)

// mirrorTopics is the prefix of the topics of all mirrors. A mirror is a setting: keys whose values
// the leader publishes as retained messages.
const mirrorTopics = "mirror/"

// checkMirrors waits until the retained messages match the state, and records a violation if that
// takes too long. No client writes at that time.
func (s *simulation) checkMirrors() {
	const patience = 10 * time.Second
	if unlike := s.until(patience, 200*time.Millisecond, s.firstMismatch); unlike != "" {
		s.violation("mirrors", "after %v: %s", patience, unlike)
	}
}

// firstMismatch describes a retained message that does not match the state, or says why the state
// is not available. It returns "" if all match. It ignores the topics of mirrors that were removed:
// their retained messages stay.
func (s *simulation) firstMismatch() string {
	node, missing := s.leadingMember()
	if missing != "" {
		return missing
	}
	want := make(map[string]string)
	for after, more := "", true; more; {
		node.View(func(m *fsm.Machine) {
			after, more = m.ScanMirrored(after, 1000, func(key string, shown fsm.Mirrored) {
				if shown.Value != "" { // an empty retained message is none
					want[shown.Topic+key] = shown.Version.String() + " " + shown.Value
				}
			})
		})
	}
	var settings fsm.Settings
	node.View(func(m *fsm.Machine) { settings, _ = m.Settings() })
	got := make(map[string]string)
	for _, mirror := range settings.Mirrors {
		for topic, m := range s.broker.retainedBelow(mirror.Topic) {
			version := ""
			for _, property := range m.properties.User {
				if property.Key == "__ts" {
					version = property.Value
				}
			}
			got[topic] = version + " " + string(m.payload)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(want)) {
		if got[topic] != want[topic] {
			return fmt.Sprintf("%s is %.80q, want %.80q", topic, got[topic], want[topic])
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(got)) {
		if _, wanted := want[topic]; !wanted {
			return fmt.Sprintf("%s is %.80q, want none", topic, got[topic])
		}
	}
	return ""
}
