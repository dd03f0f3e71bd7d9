package mirror

import (
	"maps"
	"slices"
	"time"
)

// What a Mirror remembers of topics that the broker does not take, from one connection to the next.

const (
	// maxLosses is how many connections may end while a topic alone is being published, before it is given up.
	maxLosses = 4
	// abandonedInterval is how long a topic stays given up, unless its key changes.
	abandonedInterval = 5 * time.Minute
	// maxRefused bounds the topics that are remembered as refused. Beyond it, no topic is published before some are tried again.
	maxRefused = 4096
)

func (m *Mirror) forgetFaultsLocked() {
	m.suspects, m.abandoned, m.refused, m.warned = make(map[topic]int), make(map[topic]time.Time), make(map[topic]time.Time), false
}

// attach makes a session the one that changes go to. Those topics come first that may have ended the last one.
func (m *Mirror) attach(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session, m.comparing, m.since, m.fault = s, true, time.Now(), ""
	for _, t := range slices.SortedFunc(maps.Keys(m.suspects), topic.compare) {
		if slices.Contains(s.prefixes, t.prefix) {
			s.backlog.push(t)
		} else {
			delete(m.suspects, t)
		}
	}
	s.backlog.setAlone(len(m.suspects) > 0)
}

// detach ends the session's part. failed says that the connection ended by itself, and not because of a topic that the broker refuses.
func (m *Mirror) detach(failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	inFlight := m.session.backlog.close()
	m.session, m.since, m.comparing = nil, time.Now(), true
	if !failed {
		return
	}
	for _, t := range inFlight {
		if losses, known := m.suspects[t]; known && len(inFlight) == 1 {
			m.suspects[t] = losses + 1
		} else if !known {
			m.suspects[t] = 0
		}
		if m.suspects[t] >= maxLosses {
			delete(m.suspects, t)
			m.abandoned[t] = time.Now()
			m.env.Log.Error("a topic of a mirror is given up: the broker ends the connection on it", "topic", t.String())
		}
	}
}

// settled notes the answer of the broker to the publishing of a topic.
func (m *Mirror) settled(t topic, result string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, suspected := m.suspects[t]; suspected {
		delete(m.suspects, t)
		if len(m.suspects) == 0 && m.session != nil {
			m.session.backlog.setAlone(false)
		}
	}
	switch _, before := m.refused[t]; {
	case result != resultRefused:
		delete(m.refused, t)
		return
	case before || len(m.refused) < maxRefused:
		m.refused[t] = time.Now()
	}
	if !m.warned {
		m.warned = true
		m.env.Log.Warn("the broker refuses retained messages of mirrors: do its access rules let nodes publish there?", "topic", t.String())
	}
}

func (m *Mirror) wasRefused(t topic) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, refused := m.refused[t]
	return refused
}

// publishable returns an empty string, or the result of a topic that is not published now.
func (m *Mirror) publishable(t topic) (result string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at, abandoned := m.abandoned[t]; abandoned {
		if time.Since(at) < abandonedInterval {
			return resultAbandoned
		}
		delete(m.abandoned, t)
	}
	at, refused := m.refused[t]
	if refused && time.Since(at) < refusedInterval/2 || !refused && len(m.refused) >= maxRefused {
		return resultRefused
	}
	return ""
}
