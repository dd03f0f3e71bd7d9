package mqttfront

import (
	"time"

	"holdfast/mqttfront/exclusive"
	"holdfast/mqttfront/session"
)

// Meeting returns how the node is connected to its broker, and whether it hears the others there.
func (f *Front) Meeting() *Meeting {
	return &Meeting{session: f.session, leading: &f.leading, questions: f.exclusive}
}

// Meeting is how the node is connected to its broker, and whether it hears the others there. It
// implements cluster.Broker.
type Meeting struct {
	session   *session.Own
	leading   *leading
	questions *exclusive.Checker
}

// Asked implements cluster.Broker.
func (m *Meeting) Asked() (question uint64, place int) {
	return m.questions.Published(), m.session.Place()
}

// Heard implements cluster.Broker.
func (m *Meeting) Heard(question uint64) bool {
	return m.questions.HeardSince(question, m.DeliveringSince())
}

// DeliveringSince implements cluster.Broker.
func (m *Meeting) DeliveringSince() time.Time {
	if s := m.leading.session.Load(); s != nil {
		return s.DeliveringSince()
	}
	return m.session.DeliveringSince()
}

// Delivered implements cluster.Broker.
func (m *Meeting) Delivered(moment time.Time) bool {
	s := m.leading.session.Load()
	return s != nil && s.Delivered(moment)
}

// Ask implements cluster.Broker.
func (m *Meeting) Ask() { m.questions.Ask() }

// Rejoin implements cluster.Broker.
func (m *Meeting) Rejoin(place int) { m.session.Rejoin(place) }
