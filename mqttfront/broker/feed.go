package broker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// maxDisconnects bounds the disconnects that a Feed keeps for a leader; beyond it the oldest are
// dropped.
const maxDisconnects = 1024

// Feed watches a Driver's disconnects, and keeps the latest for the time when this node leads. It
// is safe for concurrent use.
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

// NewFeed returns a Feed that is not running yet. It calls pause between two attempts to watch, and
// dropped for each disconnect that it drops: the oldest one, when a new one finds no room.
func NewFeed(driver Driver, pause func(context.Context), dropped func(), log *slog.Logger) *Feed {
	return &Feed{
		driver: driver, pause: pause, dropped: dropped, log: log,
		disconnects: make(chan Disconnect, maxDisconnects),
	}
}

// healthyWatch is the duration above which a call of WatchDisconnects has worked. Its error is then
// logged, even if the same text was logged before.
const healthyWatch = time.Minute

// Run watches disconnects until the context ends.
func (f *Feed) Run(ctx context.Context) {
	logged := ""
	for ctx.Err() == nil {
		began := time.Now()
		err := f.driver.WatchDisconnects(ctx, f.add)
		if err != nil && ctx.Err() == nil {
			f.mu.Lock()
			f.err, f.failedAt = err, time.Now()
			f.mu.Unlock()
			if time.Since(began) > healthyWatch {
				logged = ""
			}
			if text := err.Error(); text != logged {
				// once for consecutive attempts that fail with the same text
				logged = text
				f.log.Warn("client-disconnect feed unavailable: the watches of a client that disconnects stay until the feed works again, until they expire, or until the broker reports no subscriber; check the broker's address and credentials", "error", err)
			}
		}
		f.pause(ctx)
	}
}

// Disconnects returns the channel of the disconnects. One goroutine at a time may receive from it.
func (f *Feed) Disconnects() <-chan Disconnect { return f.disconnects }

// Err returns the error of the last failed attempt to watch, if it failed within the given
// duration, and otherwise nil. It returns the error also while the feed works again.
func (f *Feed) Err(within time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil || time.Since(f.failedAt) > within {
		return nil
	}
	return fmt.Errorf("client-disconnect feed unavailable: %w", f.err)
}

// add queues a disconnect. If there is no room, it drops the oldest one.
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
