package mirror

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// newTestProgress returns the progress of a leader that has no connection.
func newTestProgress() *progress {
	p := &progress{
		backlog: newBacklog(), metrics: NewMetrics(prometheus.NewRegistry()),
		log: slog.New(slog.DiscardHandler),
	}
	p.beginLeading()
	return p
}

// The mirrors are in sync if a comparison has succeeded, and the broker has acknowledged everything
// except changes of the last second. They are not in sync while the broker refuses a topic, also
// while that topic is tried again.
func TestMirrorsAreInSyncOnceTheBrokerHasAnsweredAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestProgress()
		want := func(when string, inSync bool) {
			t.Helper()
			if got := p.status(true); got.InSync != inSync {
				t.Errorf("%s: %+v", when, got)
			}
		}
		want("no connection", false)
		p.connected([]string{"t/"})
		p.beginComparison()
		want("comparing", false)
		p.backlog.push(topic{"t/", "missing"})
		p.endComparison(comparison{keys: 1, missing: 1})
		time.Sleep(time.Millisecond)
		want("what is missing is not published", false)
		p.backlog.done(p.backlog.take(time.Now()), true)
		want("published", true)
		p.backlog.push(topic{"t/", "changed"})
		want("a change just now", true)
		time.Sleep(maxInSyncLag)
		want("a change that takes long", false)
		p.backlog.done(p.backlog.take(time.Now()), false)
		p.backlog.retryNow()
		again := p.backlog.take(time.Now())
		want("refused, and tried again", false)
		p.backlog.done(again, true)
		want("accepted at last", true)
		p.resync()
		want("compared again", false)
		p.beginComparison()
		p.endComparison(comparison{dropped: true})
		time.Sleep(time.Millisecond)
		want("some were dropped", false)
		p.endComparison(comparison{unretained: 1})
		time.Sleep(time.Millisecond)
		want("some are not retained", false)
		p.disconnected(true)
		want("the connection is lost", false)
	})
}

// The corrections of a pass count even if the comparison fails after that pass.
func TestCorrectionsBeforeAFailureCount(t *testing.T) {
	p := newTestProgress()
	p.connected([]string{"t/"})
	p.resync()
	p.beginComparison()
	p.addCorrected(comparison{missing: 1, stale: 2})
	p.setFault(errNoRetained)
	p.beginComparison()
	p.addCorrected(comparison{})
	p.endComparison(comparison{})
	if s := p.status(true); s.Missing != 1 || s.Stale != 2 {
		t.Errorf("%+v", s)
	}
}

// The lag of a first mirror counts from the moment at which it came into force, not from the time
// when there was none.
func TestLagDoesNotCountTheTimeWithoutMirrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestProgress()
		p.beginIdle()
		time.Sleep(time.Hour)
		if s := p.status(true); s.Lag != 0 || s.InSync {
			t.Errorf("before the mirror's comparison is due: %+v", s)
		}
		p.endIdle()
		time.Sleep(3 * time.Second)
		if s := p.status(true); s.Lag != 3*time.Second || s.InSync {
			t.Errorf("three seconds later: %+v", s)
		}
	})
}
