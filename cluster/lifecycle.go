package cluster

import (
	"context"
	"sync"
)

// lifecycle tracks the goroutines of a node, and runs its shutdown once.
type lifecycle struct {
	stop      context.CancelFunc // ends the context of the goroutines
	closeOnce sync.Once
	closeErr  error // result of the first Close

	mu      sync.Mutex
	waiting bool // wait was called
	workers sync.WaitGroup
}

// start runs f in a goroutine that wait waits for, and returns true. After wait was called it
// returns false and does not run f: raft may be shut down, and then does not answer futures.
func (l *lifecycle) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting {
		return false
	}
	l.workers.Go(f)
	return true
}

// wait makes start return false from now on, and waits until all goroutines have returned.
func (l *lifecycle) wait() {
	l.mu.Lock()
	l.waiting = true
	l.mu.Unlock()
	l.workers.Wait()
}
