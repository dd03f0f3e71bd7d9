package role

import (
	"context"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/publish"
)

// Where the driver does not tell which clients disconnect, the watches of a client that died stay until
// the next change of their keys. When the watches are nearly as many as may be, the leader tells each
// client what its key has, without a version, which clients ignore. Such a notification ends the watch
// if it finds no subscriber, as any other does.

const (
	watchTestInterval = time.Second
	// watchesAtOnce bounds the watches of one interval, and watchTestBytes their values.
	watchesAtOnce  = 100
	watchTestBytes = 4 << 20
	// watchTestPause is the time between two passes. In each, clients that live get a notification again.
	watchTestPause = 10 * time.Second
)

// watchTest is where the leader is in a pass over all watches.
type watchTest struct {
	after fsm.WatchInfo
	pause time.Time // when the next pass may begin
}

// testWatches tests watches until the context ends. It also tells load what the watched patterns weigh.
func (l *Leader) testWatches(ctx context.Context) {
	ticker := time.NewTicker(watchTestInterval)
	defer ticker.Stop()
	var test watchTest
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		l.testSomeWatches(&test, time.Now())
	}
}

// testSomeWatches tests the next watches of a pass, if there are too many watches.
func (l *Leader) testSomeWatches(test *watchTest, now time.Time) {
	l.store.View(func(m *fsm.Machine) { // within, so that nothing is applied before the notifications are queued
		l.setPatternWeight(m.PatternWeight())
		if now.Before(test.pause) || !m.WatchesNearlyFull() {
			return
		}
		list := m.ListWatches("", "", test.after, watchesAtOnce)
		for i, bytes := 0, 0; i < len(list) && bytes < watchTestBytes; i++ {
			test.after = list[i]
			if event, ok := m.Repeat(&list[i]); ok {
				bytes += len(event.Value)
				l.repeat(&event)
			}
		}
		if len(list) == 0 {
			*test = watchTest{pause: now.Add(watchTestPause)}
		}
	})
}

func (l *Leader) setPatternWeight(weight int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load.patterns = weight
}

// repeat sends a notification that belongs to no entry.
func (l *Leader) repeat(event *fsm.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leading {
		return
	}
	l.metrics.WatchesTested.Inc()
	l.sendLocked(event.Receivers[0].ClientID, &publish.Output{
		Event: event, Receiver: &event.Receivers[0], Queued: time.Now(), TTL: l.known.expiry,
	})
}
