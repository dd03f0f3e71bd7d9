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

// start runs f in a goroutine that wait waits for. It does not run f after wait was called: raft may not answer any more. A caller that needs f's result
// waits for it with a context.
func (l *lifecycle) start(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.workers.Go(f)
	}
}

// wait waits for all goroutines, and lets no further one start.
func (l *lifecycle) wait() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.workers.Wait()
}
