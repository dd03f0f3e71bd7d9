package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"math"
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
	m.mirrors.Store(&[]fsm.Mirror{{Keys: "*", Topic: "t/"}})
	m.begin()
	return m
}

// connected begins a session without a network.
func (m *Mirror) connected() *session {
	s := &session{
		config: &m.config, env: &m.env, prefixes: []string{"t/"}, backlog: m.backlog, maxPacket: math.MaxInt, tooLarge: make(map[topic]string),
	}
	m.attach(s)
	return s
}

// The mirrors are in sync if a comparison has succeeded, and the broker has acknowledged everything except changes of the last second. They are not in
// sync while the broker refuses a topic, also while that topic is tried again.
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
		m.recordComparison(comparison{keys: 1, missing: 1})
		time.Sleep(time.Millisecond)
		want("what is missing is not published", false)
		s.backlog.done(s.backlog.take(time.Now()), true)
		want("published", true)
		s.backlog.push(topic{"t/", "changed"})
		want("a change just now", true)
		time.Sleep(maxInSyncLag)
		want("a change that takes long", false)
		s.backlog.done(s.backlog.take(time.Now()), false)
		s.backlog.resetBackoff()
		again := s.backlog.take(time.Now())
		want("refused, and tried again", false)
		s.backlog.done(again, true)
		want("accepted at last", true)
		m.Resync()
		want("compared again", false)
		m.comparisonBegun()
		m.recordComparison(comparison{dropped: true})
		time.Sleep(time.Millisecond)
		want("some were dropped", false)
		m.recordComparison(comparison{unretained: 1})
		time.Sleep(time.Millisecond)
		want("some are not retained", false)
		m.detach(true)
		want("the connection is lost", false)
	})
}

// The lag of a first mirror counts from the moment at which it came into force, not from the time when there was none.
func TestLagDoesNotCountTheTimeWithoutMirrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestMirror()
		mirrors := m.mirrors.Swap(&[]fsm.Mirror{})
		idle := make(chan struct{})
		go func() {
			defer close(idle)
			m.idle(t.Context())
		}()
		time.Sleep(time.Hour)
		m.mirrors.Store(mirrors)
		if s := m.Status(); s.Lag != 0 || s.InSync {
			t.Errorf("before Run has read that there is a mirror: %+v", s)
		}
		m.replaced()
		<-idle
		time.Sleep(3 * time.Second)
		if s := m.Status(); s.Lag != 3*time.Second || s.InSync {
			t.Errorf("three seconds later: %+v", s)
		}
	})
}

// Before any mirror is in force no topic is owned. After that, a topic is owned if it begins with a mirror's prefix.
func TestOwns(t *testing.T) {
	m := newTestMirror()
	m.mirrors.Store(new([]fsm.Mirror))
	if m.Owns("t/x") {
		t.Error("a topic is owned without a mirror")
	}
	m.mirrors.Store(&[]fsm.Mirror{{Keys: "*", Topic: "t/"}})
	if !m.Owns("t/x") || m.Owns("u/t/x") {
		t.Error("not the topics below t/ are owned")
	}
}

// A version that the broker has refused as too large is not remembered any more when its key is deleted.
func TestTooLargeValueIsForgottenWithItsKey(t *testing.T) {
	m := newTestMirror()
	s := m.connected()
	for i := range 2 * maxTooLarge {
		one := topic{"t/", fmt.Sprint(i)}
		s.backlog.push(one)
		s.acknowledged(s.backlog.take(time.Now()), &wanted{resultSet, "v", "1"}, reasonPacketTooLarge)
		s.acknowledged(s.backlog.take(time.Now()), &wanted{result: resultTooLarge}, 0)
		if len(s.tooLarge) != 1 {
			t.Fatalf("%d versions are remembered", len(s.tooLarge))
		}
		s.backlog.push(one)
		s.acknowledged(s.backlog.take(time.Now()), &wanted{result: resultCleared}, 0)
	}
	if s.backlog.refusedCount() != 0 {
		t.Error("some count as refused")
	}
}

// The corrections of a pass count even if the comparison fails after that pass.
func TestCorrectionsBeforeAFailureCount(t *testing.T) {
	m := newTestMirror()
	m.connected()
	m.Resync()
	m.comparisonBegun()
	m.addCorrected(comparison{missing: 1, stale: 2})
	m.setFault(errNoRetained)
	m.comparisonBegun()
	m.addCorrected(comparison{})
	m.recordComparison(comparison{})
	if s := m.Status(); s.Missing != 1 || s.Stale != 2 {
		t.Errorf("%+v", s)
	}
}
