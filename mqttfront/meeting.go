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
func (m *Meeting) Asked() (number uint64, address string) {
	address = m.session.Broker()
	if s := m.leading.session.Load(); s != nil {
		address = s.Broker()
	}
	return m.questions.Published(), address
}

// Heard implements cluster.Broker.
func (m *Meeting) Heard(node string) uint64 { return m.questions.Heard(node) }

// Delivered implements cluster.Broker.
func (m *Meeting) Delivered(moment time.Time) bool { return m.barrier.HasReached(moment) }

// Ask implements cluster.Broker.
func (m *Meeting) Ask() { m.questions.Ask() }

// Rejoin implements cluster.Broker.
func (m *Meeting) Rejoin(address string) { m.session.Rejoin(address) }
