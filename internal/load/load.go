// Package load puts load on a system and measures it: closed loop (each request follows the answer
// to the one before) or open loop (requests are due at a fixed rate, and their latency counts from
// when they were due, whatever delayed them: no coordinated omission).
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/backoff"
)

// ErrUnknown is wrapped by the errors of requests that may have had their effect.
var ErrUnknown = errors.New("outcome unknown")

// Options say how much load, and for how long.
type Options struct {
	// Outstanding is how many requests may be under way at once.
	Outstanding int
	// Rate is the number of requests that are due per second in an open loop; 0 means a closed
	// loop. Run makes all requests that are due before the end, however long that takes. A system
	// that cannot keep up has a lower Rate in the Result.
	Rate float64
	// Warmup is how long requests are made before they are measured.
	Warmup time.Duration
	// Duration is how long requests are measured, after the Warmup.
	Duration time.Duration
	// Progress, unless it is nil, is called for each second of the measurement, always from the
	// same goroutine.
	Progress func(Interval)
}

// Validate reports the first field that makes no sense.
func (o *Options) Validate() error {
	switch {
	case o.Outstanding < 1:
		return fmt.Errorf("load: Outstanding is %d: must be positive", o.Outstanding)
	case o.Rate < 0:
		return fmt.Errorf("load: Rate is %v: must not be negative", o.Rate)
	case o.Warmup < 0:
		return fmt.Errorf("load: Warmup is %v: must not be negative", o.Warmup)
	case o.Duration <= 0:
		return fmt.Errorf("load: Duration is %v: must be positive", o.Duration)
	}
	return nil
}

// Run makes requests until Warmup and Duration are over, or the context ends, and waits for those
// under way. request is called from Outstanding goroutines; worker is the number of the goroutine,
// from 0 on.
func Run(ctx context.Context, options Options,
	request func(ctx context.Context, worker int) error,
) (*Result, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	g := &generator{options: options, recorder: newRecorder(min(options.Outstanding, maxShards))}
	g.begin = time.Now()
	g.measureFrom = g.begin.Add(options.Warmup)
	g.end = g.measureFrom.Add(options.Duration)
	stopWatch := make(chan struct{})
	watchDone := make(chan struct{})
	go func() {
		defer close(watchDone)
		g.watch(stopWatch)
	}()
	var workers sync.WaitGroup
	for i := range options.Outstanding {
		workers.Go(func() { g.work(ctx, i, request) })
	}
	workers.Wait()
	close(stopWatch)
	<-watchDone
	took := max(time.Since(g.measureFrom), time.Millisecond)
	switch {
	case options.Rate > 0 && ctx.Err() == nil && took < options.Duration+overtime:
		// the last due request may be before the end
		took = options.Duration
	case options.Rate == 0:
		took = min(took, options.Duration)
		// else the open loop fell behind, and the time that it took to catch up counts; or it was
		// interrupted
	}
	return g.recorder.result(&options, took), nil
}

// overtime is how long after its end an open loop may wait for its last answers and still not count
// as overloaded.
const overtime = time.Second

type generator struct {
	options                 Options
	recorder                *recorder
	begin, measureFrom, end time.Time    // start of the warmup, start of the measurement, its end
	next                    atomic.Int64 // open loop: the number of the next request that is due
}

func (g *generator) work(ctx context.Context, worker int,
	request func(context.Context, int) error,
) {
	for ctx.Err() == nil {
		due := time.Now()
		if g.options.Rate > 0 {
			due = g.begin.Add(
				time.Duration(float64(g.next.Add(1)-1) / g.options.Rate * float64(time.Second)))
			if due.Before(g.end) && !backoff.Pause(ctx, time.Until(due)) {
				return
			}
		}
		if !due.Before(g.end) {
			return
		}
		err := request(ctx, worker)
		done := time.Now()
		open := g.options.Rate > 0
		switch {
		case err != nil && ctx.Err() != nil: // interrupted
		case open && due.Before(g.measureFrom) || !open && done.Before(g.measureFrom): // warming up
		case !open && err == nil && done.After(g.end):
			// a closed loop counts a success only if it came before the end
		default:
			g.recorder.record(worker, done.Sub(due), err)
		}
	}
}

// watch gathers the measurements once a second, and passes them to Progress.
func (g *generator) watch(stop <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-stop:
			g.recorder.gather()
			return
		case now := <-ticker.C:
			interval := g.recorder.gather()
			if interval.At = now.Sub(g.measureFrom); interval.At > 0 && g.options.Progress != nil &&
				(interval.Requests > 0 || now.Before(g.end)) {
				if last.Before(g.measureFrom) { // nothing was recorded before
					last = g.measureFrom
				}
				interval.Rate = float64(interval.Requests) / now.Sub(last).Seconds()
				g.options.Progress(interval)
			}
			last = now
		}
	}
}
