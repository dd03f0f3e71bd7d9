package leader

import (
	"context"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/outbox"
)

// Where the driver does not tell which clients disconnect, the watches of a client that died stay
// until the next change of their keys. When the watches are nearly as many as may be, the leader
// goes through the clients that watch, and tells each what one of its keys has, without a version,
// which clients ignore. If that finds no subscriber, the watch ends, as after any other
// notification, and the client's next watch is tested.

const (
	watchTestInterval = time.Second
	// clientsAtOnce bounds the clients that are tested at once. The next ones wait until the broker
	// has answered.
	clientsAtOnce = 100
	// watchTestTTL is short: a client that is away must not find a queue full of tests.
	watchTestTTL = 2 * time.Second
	// minTestPause and maxTestPause bound the time between two passes. It doubles after a pass that
	// ended nothing.
	minTestPause = 10 * time.Second
	maxTestPause = 10 * time.Minute
)

// watchTests is where a leader is in a pass over all clients that watch. Leader.mu guards it.
type watchTests struct {
	after string        // the client that was tested last
	next  time.Time     // when the next pass may begin
	pause time.Duration // after this pass
	open  int           // tests that the broker has not answered
	found bool          // this pass has ended a watch
}

// ended notes that the broker has answered a test, or that it was given up.
func (t *watchTests) ended(o *outbox.Output) {
	if o.Test != nil {
		t.open--
	}
}

// watchOver does what is periodic until the context ends.
func (l *Leader) watchOver(ctx context.Context) {
	ticker := time.NewTicker(watchTestInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			l.testSomeWatches(now)
			l.endStuck(now)
		}
	}
}

// testSomeWatches tests the next clients of a pass, if there are nearly as many watches as may be.
// It also tells load what the watched patterns weigh.
func (l *Leader) testSomeWatches(now time.Time) {
	l.store.View(func(m *fsm.Machine) {
		// within, so that nothing is applied before the notifications are queued
		l.mu.Lock()
		defer l.mu.Unlock()
		l.load.patterns = m.PatternWeight()
		t := &l.tests
		if t.open > 0 || now.Before(t.next) || !m.WatchesNearlyFull() {
			return
		}
		for range clientsAtOnce {
			watch, ok := m.FirstWatchAfter(t.after)
			if !ok {
				t.endPass(now)
				return
			}
			t.after = watch.ClientID
			l.testLocked(m, &watch)
		}
	})
}

func (t *watchTests) endPass(now time.Time) {
	if t.pause = min(2*t.pause, maxTestPause); t.found || t.pause == 0 {
		t.pause = minTestPause
	}
	t.after, t.found, t.next = "", false, now.Add(t.pause)
}

// testLocked tests a watch or, if that cannot be tested, one of the next of its client.
func (l *Leader) testLocked(m *fsm.Machine, first *fsm.WatchInfo) {
	const tries = 5
	watch := *first
	for range tries {
		if event, ok := m.Repeat(&watch); ok {
			l.sendTestLocked(&event, &watch)
			return
		}
		next := m.ListWatches("", watch.ClientID, watch, 1)
		if len(next) == 0 {
			return
		}
		watch = next[0]
	}
}

func (l *Leader) sendTestLocked(event *fsm.Event, watch *fsm.WatchInfo) {
	if l.ended {
		return
	}
	l.tests.open++
	l.metrics.WatchesTested.Inc()
	l.sendLocked(watch.ClientID, &outbox.Output{
		Event: event, Receiver: &event.Receivers[0], Test: watch, Queued: time.Now(),
		TTL: min(watchTestTTL, l.known.expiry),
	})
	l.passGivenUpLocked() // it may have displaced others
}

// testEnded is called when the broker has answered a notification. If it was a test and its client
// is not there, the client's next watch is tested.
func (l *Leader) testEnded(o *outbox.Output, gone bool) {
	if o.Test == nil {
		return
	}
	if !gone {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tests.ended(o)
		return
	}
	l.store.View(func(m *fsm.Machine) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tests.found = true
		if next := m.ListWatches("", o.Test.ClientID, *o.Test, 1); len(next) > 0 {
			l.testLocked(m, &next[0])
		}
	})
}
