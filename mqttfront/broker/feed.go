package broker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// maxDisconnects bounds the disconnects that a Feed keeps for a leader; beyond it the oldest are dropped.
const maxDisconnects = 1024

// Feed watches a Driver's disconnects, and keeps the latest for the time when this node leads. It is safe for concurrent use.
type Feed struct {
	driver      Driver
	pause       func(context.Context)
	dropped     func()
	log         *slog.Logger
	disconnects chan Disconnect

	mu       sync.Mutex
	err      error // of the last attempt to watch
	failedAt time.Time
}

// NewFeed returns a Feed that is not running yet. It calls pause between two attempts to watch, and dropped for each disconnect that it had no
// room for.
func NewFeed(driver Driver, pause func(context.Context), dropped func(), log *slog.Logger) *Feed {
	return &Feed{driver: driver, pause: pause, dropped: dropped, log: log, disconnects: make(chan Disconnect, maxDisconnects)}
}

// Run watches disconnects until the context ends.
func (f *Feed) Run(ctx context.Context) {
	logged := ""
	for ctx.Err() == nil {
		err := f.driver.WatchDisconnects(ctx, f.add)
		if err != nil && ctx.Err() == nil {
			f.mu.Lock()
			f.err, f.failedAt = err, time.Now()
			f.mu.Unlock()
			if text := err.Error(); text != logged { // once for all attempts that fail alike
				logged = text
				f.log.Warn("client-disconnect feed unavailable: watches of clients that disconnect do not end now", "error", err)
			}
		}
		f.pause(ctx)
	}
}

// Disconnects returns the channel of the disconnects. One goroutine at a time may receive from it.
func (f *Feed) Disconnects() <-chan Disconnect { return f.disconnects }

// Err returns why the last attempt to watch failed. It returns nil if none failed, or if none failed within the time since: then the feed works.
func (f *Feed) Err(since time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil || time.Since(f.failedAt) > since {
		return nil
	}
	return fmt.Errorf("client-disconnect feed unavailable: %w", f.err)
}

// add queues a disconnect, in the place of the oldest one if there is no room.
func (f *Feed) add(d Disconnect) {
	for {
		select {
		case f.disconnects <- d:
			return
		default:
		}
		select {
		case <-f.disconnects:
			f.dropped()
		default:
		}
	}
}
