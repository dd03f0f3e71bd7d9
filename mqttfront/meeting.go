package mqttfront

import (
	"time"

	"holdfast/mqttfront/exclusive"
	"holdfast/mqttfront/ingest"
)

// Meeting returns how the node is connected to its broker, and whether it hears the others there.
func (f *Front) Meeting() *Meeting {
	return &Meeting{session: f.session, leading: &f.leading, questions: f.exclusive, barrier: f.barrier}
}

// Meeting is how the node is connected to its broker, and whether it hears the others there. It
// implements cluster.Broker.
type Meeting struct {
	session   *ingest.NodeSession
	leading   *leading
	questions *exclusive.Checker
	barrier   *ingest.Barrier
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
func (m *Meeting) Delivered(moment time.Time) bool { return m.barrier.HasReached(moment) }

// Ask implements cluster.Broker.
func (m *Meeting) Ask() { m.questions.Ask() }

// Rejoin implements cluster.Broker.
func (m *Meeting) Rejoin(place int) { m.session.Rejoin(place) }
