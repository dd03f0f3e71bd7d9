package raftlog

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Guard runs store calls, and ends the process if one fails or exceeds the deadline. It never
// abandons a call while the process lives.
type Guard struct {
	Deadline time.Duration // for one store call
	// ends the process; it may return in a test or in Recover
	Exit func(error)
	// is called after each store call, also a failed one; may be nil
	ObserveCall func(what string, took time.Duration)
}

// ErrDisk says that the disk under the stores failed or hangs.
var ErrDisk = errors.New("the disk failed")

func (g Guard) do(what string, call func() error) error {
	watch := g.watch(what)
	began := time.Now()
	err := call()
	watch.stop()
	if g.ObserveCall != nil {
		g.ObserveCall(what, time.Since(began))
	}
	if err != nil {
		err = fmt.Errorf("%w: write the %s: %w", ErrDisk, what, err)
		g.Exit(err)
	}
	return err
}

// watchdog ends the process when a store call takes longer than its deadline. The deadline is
// counted in parts: a pause of the process or the machine uses up one part only, and does not look
// like a disk that hangs.
type watchdog struct {
	guard Guard
	what  string

	mu    sync.Mutex
	left  int // parts of the deadline that are left; 0 after the call has ended, too
	timer *time.Timer
}

const watchParts = 10

func (g Guard) watch(what string) *watchdog {
	w := &watchdog{guard: g, what: what, left: watchParts}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(g.Deadline/watchParts, w.tick)
	return w
}

// tick is called after each part of the deadline.
func (w *watchdog) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == 0 {
		return // the call has ended
	}
	if w.left--; w.left == 0 {
		w.guard.Exit(fmt.Errorf("%w: writing the %s takes longer than %v", ErrDisk, w.what,
			w.guard.Deadline))
		return
	}
	w.timer.Reset(w.guard.Deadline / watchParts)
}

func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = 0
	w.timer.Stop()
}
