package client

import (
	"context"
	"time"

	"holdfast/internal/backoff"
)

// moment is a point in time. The time since then includes the time in which the machine was
// suspended, which Go's monotonic clock leaves out on Linux.
type moment struct {
	at   time.Time
	boot time.Duration // what sinceBoot returned
}

func now() moment { return moment{time.Now(), sinceBoot()} }

// elapsed returns the time since the moment.
func (m moment) elapsed() time.Duration { return max(time.Since(m.at), sinceBoot()-m.boot) }

// pauseUntil waits until a time has passed since a moment, and reports whether the context lasted
// as long. A timer stands still while the machine is suspended. So pauseUntil looks at the clock at
// least once a second.
func pauseUntil(ctx context.Context, since moment, d time.Duration) bool {
	for {
		left := d - since.elapsed()
		if left <= 0 {
			return ctx.Err() == nil
		}
		if !backoff.Pause(ctx, min(left, time.Second)) {
			return false
		}
	}
}
