package schedule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Pick says which of the runnable goroutines runs next.
type Pick uint64

const (
	// PickFirst is Go's own order: first in, first out, but for a goroutine that the running one
	// has just woken.
	PickFirst Pick = iota
	// PickAny draws one.
	PickAny
	// PickHighest takes the one of the highest priority. Priorities are drawn when goroutines start
	// (PCT: Burckhardt et al., ASPLOS 2010).
	PickHighest
)

// MaxGroup is the largest number of a group.
const MaxGroup = 15

// Settings say how the order of a run is drawn. Stop, Delay, Demote and Yield are probabilities of
// what happens at one synchronisation point. Their sum is less than 1.
type Settings struct {
	Seed uint64
	Pick Pick
	Stop float64 // the goroutine's group stops, for up to Longest
	// the goroutine sleeps for up to Longest, as on a slow core, or after a page fault
	Delay  float64
	Demote float64 // the goroutine gets a priority below all others (with PickHighest)
	Yield  float64 // other goroutines run first
	Behind float64 // probability that a goroutine that is woken does not run next (with PickFirst)
	// Longest bounds stops and delays, in virtual time. Their logarithm is uniform between 50 µs
	// and Longest.
	Longest time.Duration
}

// Draw draws settings from a schedule's seed and from the seed of the faults: the same schedule
// gives other settings with another seed. Schedule 0 is Go's own order.
func Draw(seed, schedule uint64) Settings {
	r := rand.New(rand.NewPCG(schedule, seed))
	s := Settings{Seed: r.Uint64()}
	if schedule == 0 {
		return s
	}
	draw := func(values ...float64) float64 { return values[r.IntN(len(values))] }
	s.Pick = Pick(r.IntN(3))
	s.Yield, s.Behind = draw(0, 0.001, 0.01, 0.05), draw(0, 0.1, 0.3)
	s.Stop, s.Delay = draw(0, 2e-6, 1e-5, 4e-5), draw(0, 2e-6, 2e-5, 1e-4)
	if s.Pick == PickHighest {
		s.Demote = draw(1e-6, 1e-5, 1e-4)
	}
	s.Longest = time.Duration(draw(0.02, 0.4, 1.6, 3.2) * float64(time.Second))
	return s
}

// String describes the settings for people.
func (s Settings) String() string {
	pick := [...]string{"first", "any", "highest priority"}[s.Pick]
	return fmt.Sprintf("next: %s; at a synchronisation point: stop of the node %.2g, delay %.2g, demotion %.2g, yield %.2g; woken and not next %.2g; stops and delays of up to %v",
		pick, s.Stop, s.Delay, s.Demote, s.Yield, s.Behind, s.Longest)
}

// shortest is the shortest stop or delay. It has the value of simShort in golib/runtime.go.txt.
const shortest = 50 * time.Microsecond

// runtimeSettings has the layout of simSettings in golib/runtime.go.txt.
type runtimeSettings struct{ seed, pick, stop, delay, demote, yield, behind, longest uint64 }

func (s *Settings) forRuntime() runtimeSettings {
	of := func(probabilities ...float64) uint64 {
		sum := 0.0
		for _, p := range probabilities {
			sum += p
		}
		return uint64(min(sum, 0.999) * math.MaxUint64)
	}
	longest := uint64(0)
	for shortest<<(longest+1) <= s.Longest {
		longest++
	}
	return runtimeSettings{
		seed: s.Seed, pick: uint64(s.Pick), stop: of(s.Stop), delay: of(s.Stop, s.Delay),
		demote: of(s.Stop, s.Delay, s.Demote),
		yield:  of(s.Stop, s.Delay, s.Demote, s.Yield), behind: of(s.Behind), longest: longest,
	}
}

// Switch is one switch to a goroutine.
type Switch struct {
	Goroutine uint64 // its number in the run
	Now       uint64 // virtual time, nanoseconds since 1970
	State     uint64 // state of the run's random generator
	Start     uint64 // program counter of its first function
	PC        uint64 // program counter at which it goes on
	Frames    [11]uint64
}

// Summary describes a run. Two runs of the same binary with the same seeds have the same summary.
type Summary struct {
	Switches uint64 // switches to goroutines
	Points   uint64 // synchronisation points that were passed
	Stops    uint64 // stops of groups that were drawn at a point
	Delays   uint64 // delays of goroutines that were drawn at a point
	Hash     uint64 // hash over all switches
}

// aside has the value of simAside in golib/runtime.go.txt.
const aside = 1 << 16

// Quiet runs f. Meanwhile the goroutine passes no synchronisation points and draws nothing from the
// run's seed, so that f, which may log for instance, does not change the schedule. f must not
// block.
func Quiet(f func()) {
	quiet(1 + aside)
	defer quiet(-1 - aside)
	f()
}

// Mutex is a mutex for state of the simulation itself: a goroutine is not stopped when it locks it,
// or while it holds it. Its holder must not block.
type Mutex struct{ mu sync.Mutex }

// Lock locks m.
func (m *Mutex) Lock() {
	quiet(1)
	m.mu.Lock()
}

// Unlock unlocks m.
func (m *Mutex) Unlock() {
	m.mu.Unlock()
	quiet(-1)
}
