//go:build replay

package schedule

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// workload runs goroutines that share channels, mutexes, atomics, maps and timers. It returns what
// they did, in order.
func workload(log func(string)) (done []string) {
	var mu sync.Mutex
	var turns atomic.Int64
	did := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		done = append(done, fmt.Sprintf(format, args...))
	}
	a, b := make(chan int), make(chan int, 3)
	var working sync.WaitGroup
	for i := range 8 {
		working.Go(func() {
			Enter(1 + i%3)
			for j := range 20 {
				log(fmt.Sprint(map[string]int{"i": i, "j": j}))
				for key := range map[string]int{"x": 1, "y": 2, "z": 3} {
					did("%d got %s", i, key)
				}
				select {
				case a <- i:
				case v := <-a:
					did("%d took %d", i, v)
				case b <- j:
				case v := <-b:
					did("%d had %d", i, v)
				case <-time.After(time.Duration(rand.IntN(5)) * time.Millisecond):
					turns.Store(int64(i))
				}
			}
		})
	}
	working.Wait()
	return append(done, fmt.Sprint(turns.Load()))
}

func run(t *testing.T, s Settings, log func(string)) (summary Summary, done []string) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		Start(s, nil)
		done = workload(log)
		summary, _ = Finish()
	})
	return summary, done
}

func silent(string) {}

// settings returns settings with which every kind of event is drawn.
func settings(seed uint64, pick Pick) Settings {
	return Settings{
		Seed: seed, Pick: pick, Stop: 0.01, Delay: 0.01, Demote: 0.01, Yield: 0.1,
		Behind: 0.2, Longest: 50 * time.Millisecond,
	}
}

func TestSameSeedSameOrder(t *testing.T) {
	// a first run, because what a process does only once also passes synchronisation points
	run(t, settings(0, PickAny), silent)
	hashes := make(map[uint64]bool)
	for seed := range uint64(20) {
		for _, pick := range []Pick{PickFirst, PickAny, PickHighest} {
			first, done := run(t, settings(seed, pick), silent)
			runtime.GC()
			again, doneAgain := run(t, settings(seed, pick), silent)
			if first != again || fmt.Sprint(done) != fmt.Sprint(doneAgain) {
				t.Fatalf("seed %d: %+v, and then %+v", seed, first, again)
			}
			if first.Stops == 0 || first.Delays == 0 {
				t.Errorf("seed %d: %+v", seed, first)
			}
			hashes[first.Hash] = true
		}
	}
	if len(hashes) != 60 {
		t.Errorf("60 schedules are %d", len(hashes))
	}
}

func TestLoggingChangesNoSchedule(t *testing.T) {
	run(t, settings(0, PickAny), silent)
	for seed := range uint64(20) {
		first, _ := run(t, settings(seed, PickAny), silent)
		var lines sync.Map
		var mu Mutex
		kept := make(map[string]bool)
		again, _ := run(t, settings(seed, PickAny), func(line string) {
			Quiet(func() {
				lines.Store(line, fmt.Sprint(kept))
				mu.Lock()
				defer mu.Unlock()
				for other := range kept {
					delete(kept, other)
				}
				kept[line] = true
			})
		})
		if first != again {
			t.Fatalf("seed %d: %+v, and with more logging %+v", seed, first, again)
		}
	}
}

// ticking starts a goroutine and timers in a group. It returns a function that returns the virtual
// times at which they ran.
func ticking(group int, until time.Duration) (times func() []time.Duration) {
	began := time.Now()
	var mu Mutex
	var ran []time.Duration
	note := func() {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, time.Since(began))
	}
	go func() {
		Enter(group)
		go func() {
			for time.Since(began) < until {
				time.Sleep(10 * time.Millisecond)
				note()
			}
		}()
		for at := time.Duration(0); at < until; at += 10 * time.Millisecond {
			time.AfterFunc(at, note)
		}
	}()
	return func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return ran
	}
}

func TestStopStopsAGroupAndNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		Start(Settings{Seed: 1}, nil)
		defer Finish()
		const from, lasts, whole = 205 * time.Millisecond, 500 * time.Millisecond, time.Second
		stopped, other := ticking(1, whole), ticking(2, whole)
		time.Sleep(from)
		Stop(1, lasts)
		time.Sleep(2 * whole)
		within := func(times []time.Duration) (n int) {
			for _, at := range times {
				if at > from && at < from+lasts {
					n++
				}
			}
			return n
		}
		if n := within(stopped()); n != 0 {
			t.Errorf("a group that is stopped ran %d times", n)
		}
		if n := within(other()); n < 90 {
			t.Errorf("the other group ran %d times only", n)
		}
		if n := len(stopped()); n < 100 {
			t.Errorf("the group ran %d times in all: what was due while it was stopped is lost", n)
		}
	})
}

func TestStopAfterCountsPoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		Start(Settings{Seed: 1}, nil)
		defer Finish()
		var mu sync.Mutex
		began, passed := time.Now(), 0
		done := make(chan struct{})
		go func() {
			Enter(1)
			StopAfter(1, 5, time.Second)
			for time.Since(began) == 0 {
				mu.Lock()
				passed++
				mu.Unlock()
			}
			close(done)
		}()
		<-done
		if passed != 5 || time.Since(began) != time.Second {
			t.Errorf("stopped at the point %d for %v", passed, time.Since(began))
		}
	})
}

// A goroutine that waits for a mutex whose holder is stopped does not keep virtual time from
// passing.
func TestStoppedHolderOfAMutexLetsTimePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		Start(Settings{Seed: 1}, nil)
		defer Finish()
		var mu sync.RWMutex
		held := make(chan struct{})
		go func() {
			Enter(1)
			mu.Lock()
			close(held)
			runtime.Gosched()
			mu.Unlock()
		}()
		<-held
		Stop(1, time.Second)
		began := time.Now()
		mu.RLock()
		defer mu.RUnlock()
		if took := time.Since(began); took != time.Second {
			t.Errorf("the mutex was free after %v", took)
		}
	})
}

func TestDelayAfterDelaysOneGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		Start(Settings{Seed: 1}, nil)
		defer Finish()
		began := time.Now()
		var took [3]time.Duration
		var working sync.WaitGroup
		DelayAfter(1, 2, time.Second)
		for i := range took {
			working.Go(func() {
				Enter(1)
				var point atomic.Bool
				point.Load()
				took[i] = time.Since(began)
			})
		}
		working.Wait()
		if took[0]+took[1]+took[2] != time.Second {
			t.Errorf("they took %v", took)
		}
	})
}
