// Package backoff has the wait between attempts that fail:
//
//	b := backoff.New(50*time.Millisecond, 2*time.Second, random)
//	for {
//		if err := attempt(); err == nil {
//			b.Reset()
//		}
//		b.Wait(ctx)
//	}
package backoff

import (
	"context"
	"time"
)

// Backoff is the delay between attempts: least at first, and twice as long after each Wait, up to
// most. It is for one goroutine.
type Backoff struct {
	least, most, next time.Duration
	random            func() uint64
}

// New returns a Backoff. random makes each wait a random one, between a half of the delay and all
// of it, so that processes do not keep in step.
func New(least, most time.Duration, random func() uint64) *Backoff {
	return &Backoff{least: least, most: most, next: least, random: random}
}

// Wait waits for the delay, and doubles it. It returns false at once if the context ends first.
func (b *Backoff) Wait(ctx context.Context) bool {
	delay := b.next
	b.next = min(2*b.next, b.most)
	return Pause(ctx, Jitter(delay, b.random))
}

// Reset makes the next delay the least one.
func (b *Backoff) Reset() { b.next = b.least }

// Jitter returns a random duration between a half of d and d.
func Jitter(d time.Duration, random func() uint64) time.Duration {
	return d/2 + time.Duration(random()%uint64(d/2+1))
}

// Pause waits for d. It returns false at once if the context ends first, or has ended and d is not
// positive.
func Pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
