package mirror

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/fsm"
)

// newTestMirror returns a leader's Mirror that has no connection.
func newTestMirror() *Mirror {
	m := New(Config{Cluster: "c"}, Environment{
		Confirm: func(context.Context) error { return nil }, View: func(f func(*fsm.Machine)) { f(fsm.New()) },
		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	m.begin()
	return m
}

// connected begins a session without a network.
func (m *Mirror) connected() *session {
	s := &session{prefixes: []string{"t/"}, backlog: newBacklog(), again: make(chan struct{}, 1)}
	m.attach(s)
	return s
}

// The topic on which the broker ends connections is found among those that were in flight, and given up; the others are shown.
func TestTopicThatEndsConnectionsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, bad := newTestMirror(), topic{"t/", "bad"}
		s := m.connected()
		for _, key := range []string{"a", "bad", "c"} {
			s.backlog.push(topic{"t/", key})
			s.backlog.next()
		}
		m.detach(true)
		shown := make(map[topic]bool)
		connect := func() {
			s := m.connected()
			for len(s.backlog.queue) > 0 {
				next := s.backlog.next()
				if next.topic == bad && m.publishable(bad) == "" {
					break // the broker ends the connection
				}
				shown[next.topic] = true
				m.settled(next.topic, resultSet)
				s.backlog.done(next, true)
			}
			m.detach(true)
		}
		for connections := 0; m.publishable(bad) == ""; connections++ {
			if connections > 2*maxLosses {
				t.Fatal("it is not given up")
			}
			connect()
		}
		connect()
		if len(shown) != 2 || m.publishable(topic{"t/", "a"}) != "" || m.Status().Abandoned != 1 {
			t.Errorf("%v are shown, %d are given up", shown, m.Status().Abandoned)
		}
		time.Sleep(abandonedInterval)
		if m.publishable(bad) != "" {
			t.Error("it is given up for longer than that")
		}
	})
}

// A change of its key has a topic tried again that was given up.
func TestChangeOfAKeyLiftsWhatWasGivenUp(t *testing.T) {
	m, bad := newTestMirror(), topic{"t/", "bad"}
	m.abandoned[bad] = time.Now()
	m.connected()
	m.Applied(&fsm.EntryOutcome{Mirrored: []fsm.MirroredKey{{Topic: "t/", Key: "bad"}}})
	if m.publishable(bad) != "" || m.Status().Topics != 1 {
		t.Errorf("%+v", m.Status())
	}
}

// In sync is what was compared and acknowledged, but for the latest changes: nothing that the broker refuses, also while that is tried again.
func TestInSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestMirror()
		want := func(when string, inSync bool) {
			t.Helper()
			if got := m.Status(); got.InSync != inSync {
				t.Errorf("%s: %+v", when, got)
			}
		}
		want("no connection", false)
		s := m.connected()
		m.comparisonBegun()
		want("comparing", false)
		s.backlog.push(topic{"t/", "missing"})
		m.compared(comparison{keys: 1, missing: 1})
		time.Sleep(time.Millisecond)
		want("what is missing is not published", false)
		s.backlog.done(s.backlog.next(), true)
		want("published", true)
		s.backlog.push(topic{"t/", "changed"})
		want("a change just now", true)
		time.Sleep(recent)
		want("a change that takes long", false)
		next := s.backlog.next()
		m.settled(next.topic, resultRefused)
		s.backlog.done(next, false)
		s.backlog.retry()
		want("refused, and tried again", false)
		next = s.backlog.next()
		m.settled(next.topic, resultSet)
		s.backlog.done(next, true)
		want("accepted at last", true)
		m.Resync()
		want("compared again", false)
		m.comparisonBegun()
		m.compared(comparison{dropped: true})
		time.Sleep(time.Millisecond)
		want("some were dropped", false)
		m.detach(true)
		want("the connection is lost", false)
	})
}

// Before any mirror is in force nothing is owned; a topic belongs to the mirror whose topics begin like it.
func TestOwns(t *testing.T) {
	m := newTestMirror()
	if m.Owns("t/x") {
		t.Error("a topic is owned without a mirror")
	}
	m.mirrors.Store(&[]fsm.Mirror{{Keys: "*", Topic: "t/"}})
	if !m.Owns("t/x") || m.Owns("u/t/x") {
		t.Error("not the topics below t/ are owned")
	}
}
