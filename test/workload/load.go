// Package workload holds clients that use the store as its users do, write down all that they see, and know nothing of what carries
// their messages: the simulation's broker, or a real one.
package workload

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/test/history"
)

// Settings are a load's.
type Settings struct {
	Seed          uint64
	Expiry        int           // of requests, in seconds
	DefaultExpiry time.Duration // that the store gives to requests without
	CopyWindow    time.Duration // within which a copy may be sent after the reply
	// Lifetime is how long the store remembers an outcome. With it, some clients send copies around the end of that; 0 is without them.
	Lifetime   time.Duration
	Pace       time.Duration // between the operations of one client
	LockTTL    time.Duration
	Generation time.Duration // how long a set of keys is used: short histories are quick to check
}

// Load is what the clients of one run have in common.
type Load struct {
	Settings
	History  *history.History
	Answered atomic.Int64 // operations

	began time.Time
	end   chan struct{} // closed when everybody is to stop
	over  chan struct{} // closed when the clients are to stop
	work  sync.WaitGroup
	staff sync.WaitGroup
}

// New returns a load that begins now, with an empty history.
func New(settings Settings) *Load {
	return &Load{
		Settings: settings, History: history.New(), began: time.Now(), end: make(chan struct{}), over: make(chan struct{}),
	}
}

// Now returns the time since the beginning.
func (l *Load) Now() time.Duration { return time.Since(l.began) }

// Go runs f in a goroutine that Wait waits for.
func (l *Load) Go(f func()) { l.work.Go(f) }

// Done is closed when everybody is to stop.
func (l *Load) Done() <-chan struct{} { return l.end }

// Ended reports whether everybody is to stop.
func (l *Load) Ended() bool {
	select {
	case <-l.end:
		return true
	default:
		return false
	}
}

// Sleep waits, at most until End, and reports whether to go on. It is not cut short by Over.
func (l *Load) Sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return !l.Ended()
	case <-l.end:
		return false
	}
}

// waitUnlessOver waits, and reports whether the clients are to go on.
func (l *Load) waitUnlessOver(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.over:
	}
	select {
	case <-l.over:
		return false
	default:
		return true
	}
}

// Over tells the clients to stop, and waits until they have.
func (l *Load) Over() {
	close(l.over)
	l.staff.Wait()
}

// End stops everything. Wait waits for it.
func (l *Load) End() { close(l.end) }

// Wait waits for what Go has started.
func (l *Load) Wait() { l.work.Wait() }

// between returns a duration from a range.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }
