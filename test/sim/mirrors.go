package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"holdfast/fsm"
)

// mirrorTopics begins the topics of all mirrors.
const mirrorTopics = "mirror/"

// checkMirrors waits until the retained messages are as the state, and says so when that takes too long. No client writes any more.
func (s *simulation) checkMirrors() {
	const patience = 10 * time.Second
	if unlike := s.until(patience, 200*time.Millisecond, s.unlike); unlike != "" {
		s.violation("mirrors", "after %v: %s", patience, unlike)
	}
}

// unlike says which retained message is not as the state; empty is none. It does not look at the topics of mirrors that were removed: their retained
// messages stay.
func (s *simulation) unlike() string {
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
