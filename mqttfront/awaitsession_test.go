package mqttfront

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/mqttfront/ingest"
)

// Publishing waits until a probe (a message that the node sends to itself through the broker) has returned: the node's own session is up. It waits for
// sessionWait at most, and not while requests wait for room in the pending request buffer.
func TestPublishingAwaitsTheNodesOwnSession(t *testing.T) {
	const probe = 300 * time.Millisecond
	for name, test := range map[string]struct {
		prepare func(a *sessionAwaiter, blocked *atomic.Bool)
		waits   time.Duration
		without int // how often it goes on without the session
	}{
		"until the probe returns": {
			prepare: func(a *sessionAwaiter, _ *atomic.Bool) {
				moment := time.Now()
				time.AfterFunc(probe, func() { a.barrier.Advance(moment) })
			},
			waits: probe,
		},
		"no longer than it may":            {prepare: func(*sessionAwaiter, *atomic.Bool) {}, waits: sessionWait, without: 1},
		"not while requests wait for room": {prepare: func(_ *sessionAwaiter, blocked *atomic.Bool) { blocked.Store(true) }, without: 1},
		"not when the probe has returned":  {prepare: func(a *sessionAwaiter, _ *atomic.Bool) { a.barrier.Advance(time.Now()) }},
		"no longer when requests wait for room": {
			prepare: func(_ *sessionAwaiter, blocked *atomic.Bool) { time.AfterFunc(probe-1, func() { blocked.Store(true) }) },
			waits:   probe, without: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var blocked atomic.Bool
				without, began := 0, time.Now()
				a := &sessionAwaiter{
					barrier: ingest.NewBarrier(), blocked: blocked.Load, countWithoutSession: func() { without++ }, log: slog.New(slog.DiscardHandler),
				}
				test.prepare(a, &blocked)
				a.await(t.Context(), began)
				if waited := time.Since(began); waited != test.waits {
					t.Errorf("waited for %v", waited)
				}
				if without != test.without {
					t.Errorf("went on without the session %d times", without)
				}
			})
		})
	}
}
