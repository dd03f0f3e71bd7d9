package ingest

import (
	"context"
	"sync/atomic"
	"time"
)

// pauseDetector measures for how long this process may have been suspended (SIGSTOP, for example): it records the time at each interval while a
// connection lives. All methods are safe for concurrent use.
type pauseDetector struct {
	began time.Time
	last  atomic.Int64 // when it recorded the time last: nanoseconds since began
}

func newPauseDetector() *pauseDetector { return &pauseDetector{began: time.Now()} }

// sinceLast returns how long ago the time was recorded last.
func (d *pauseDetector) sinceLast() time.Duration {
	return time.Since(d.began) - time.Duration(d.last.Load())
}

// record reads the clock, calls handleGap with the time since the last record, and then records the time that it read. So a pause in record itself is part
// of the next gap, and no goroutine sees a recent time before handleGap has handled the gap.
func (d *pauseDetector) record(handleGap func(gap time.Duration)) {
	now := time.Since(d.began)
	handleGap(now - time.Duration(d.last.Load()))
	d.last.Store(int64(now))
}

// run records the time at intervals until the context ends.
func (d *pauseDetector) run(ctx context.Context, interval time.Duration, handleGap func(gap time.Duration)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			d.record(handleGap)
		}
	}
}
