package cluster

import (
	"context"
	"sync"
)

// lifecycle ends what a node has begun.
type lifecycle struct {
	stop    context.CancelFunc
	closing sync.Once
	closed  error

	mu      sync.Mutex
	ended   bool // wait was called
	workers sync.WaitGroup
}

// start runs f in a goroutine that wait waits for, and returns true. After wait was called it returns false and does not run f: raft may not answer any
// more.
func (l *lifecycle) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.workers.Go(f)
	return true
}

// wait waits for all goroutines, and lets no further one start.
func (l *lifecycle) wait() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.workers.Wait()
}
