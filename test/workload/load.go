// Package workload has clients that use the store as its users do, and record all that they see in
// a history (package history). The simulation carries their messages over its own broker, the chaos
// harness over a real one.
package workload

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/test/history"
)

// Settings are the settings of a load.
type Settings struct {
	Seed          uint64
	Expiry        int           // message expiry of requests, in seconds
	DefaultExpiry time.Duration // expiry that the store gives to a request without message expiry
	CopyWindow    time.Duration // time after the reply within which a copy may be sent
	// Lifetime is how long the store remembers an outcome. Some clients send copies around the end
	// of that time. With 0 there are no such clients.
	Lifetime time.Duration
	// mean pause between two operations of one client; some clients pause longer
	Pace    time.Duration
	LockTTL time.Duration
	// time after which clients go over to new keys: short histories are quick to check
	Generation time.Duration
}

// Load is what the clients of one run have in common.
type Load struct {
	Settings
	History  *history.History
	Answered atomic.Int64 // number of operations with a reply

	began time.Time
	end   chan struct{}  // closed by End: all goroutines stop, also those that carry messages
	over  chan struct{}  // closed by StopClients: the clients begin no further operations
	work  sync.WaitGroup // the goroutines that Go has started
	staff sync.WaitGroup // the clients that Staff has started
}

// New returns a load that begins now, with an empty history.
func New(settings Settings) *Load {
	return &Load{
		Settings: settings, History: history.New(), began: time.Now(), end: make(chan struct{}),
		over: make(chan struct{}),
	}
}

// Now returns the time since the beginning.
func (l *Load) Now() time.Duration { return time.Since(l.began) }

// Go runs f in a goroutine that Wait waits for.
func (l *Load) Go(f func()) { l.work.Go(f) }

// Done returns the channel that End closes.
func (l *Load) Done() <-chan struct{} { return l.end }

// Ended reports whether End was called.
func (l *Load) Ended() bool {
	select {
	case <-l.end:
		return true
	default:
		return false
	}
}

// Sleep waits, at most until End, and reports whether to go on. It is not cut short by StopClients.
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

// waitUnlessOver waits, at most until StopClients, and reports whether the clients are to go on.
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

// StopClients tells the clients to stop, and waits until they have.
func (l *Load) StopClients() {
	close(l.over)
	l.staff.Wait()
}

// End tells all goroutines of the load to stop. Wait waits until they have.
func (l *Load) End() { close(l.end) }

// Wait waits for the goroutines that Go has started.
func (l *Load) Wait() { l.work.Wait() }

// between returns a duration from a range.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }
