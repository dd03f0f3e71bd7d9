package ingest

import (
	"context"
	"sync/atomic"
	"time"
)

// heartbeat tells for how long this process may have been stopped: it beats while the process runs and the connection lives. All methods are safe for
// concurrent use.
type heartbeat struct {
	began time.Time
	last  atomic.Int64 // nanoseconds since began
}

func newHeartbeat() *heartbeat { return &heartbeat{began: time.Now()} }

// silent returns how long ago the last beat was.
func (h *heartbeat) silent() time.Duration { return time.Since(h.began) - time.Duration(h.last.Load()) }

// beat calls handleGap with the time since the last beat, and records the beat afterwards. So no goroutine sees a recent beat before handleGap has
// handled the gap.
func (h *heartbeat) beat(handleGap func(gap time.Duration)) {
	handleGap(h.silent())
	h.last.Store(int64(time.Since(h.began)))
}

// run beats at intervals until the context ends.
func (h *heartbeat) run(ctx context.Context, interval time.Duration, handleGap func(gap time.Duration)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.beat(handleGap)
		}
	}
}
