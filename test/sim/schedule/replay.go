//go:build replay

package schedule

import (
	"runtime"
	"runtime/debug"
	"time"
	_ "unsafe" // for the functions that golib adds to the runtime
)

// Replays reports whether runs can be repeated.
const Replays = true

// Start begins a run. It is called in the bubble's first goroutine. It records switches until the
// record is full.
func Start(s Settings, record []Switch) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	settings := s.forRuntime()
	simStart(&settings, record)
}

// Finish ends a run, and says how much of the record was used.
func Finish() (summary Summary, recorded int) {
	summary.Switches, summary.Hash, summary.Points, summary.Stops, summary.Delays, recorded = simFinish()
	debug.SetGCPercent(100)
	return summary, recorded
}

// Calm ends the drawing of stops, delays and demotions. Those that are under way go on. Calm does
// not cancel StopAfter and DelayAfter: they still take effect when their points are passed.
func Calm() { simCalm() }

// Enter puts the calling goroutine into a group, from 1 to MaxGroup, or 0 for none.
func Enter(group int) { simEnter(uint32(group)) }

// Stop stops a group for a virtual time.
func Stop(group int, d time.Duration) { simStop(uint32(group), int64(d)) }

// StopAfter stops a group for a virtual time when its goroutines have passed some synchronisation
// points, at least one. A later call replaces one whose points are not passed yet.
func StopAfter(group int, points uint64, d time.Duration) {
	simStopAfter(uint32(group), max(points, 1), int64(d))
}

// DelayAfter counts the synchronisation points that the goroutines of a group pass, at least one,
// and lets the goroutine that passes the last one sleep for a virtual time. A later call replaces
// one whose points are not passed yet.
func DelayAfter(group int, points uint64, d time.Duration) {
	simDelayAfter(uint32(group), max(points, 1), int64(d))
}

func quiet(delta int32) { simQuiet(delta) }

//go:linkname simStart runtime.simStart
func simStart(settings *runtimeSettings, record []Switch)

//go:linkname simFinish runtime.simFinish
func simFinish() (switches, hash, points, stops, delays uint64, recorded int)

//go:linkname simCalm runtime.simCalm
func simCalm()

//go:linkname simEnter runtime.simEnter
func simEnter(group uint32)

//go:linkname simStop runtime.simStop
func simStop(group uint32, ns int64)

//go:linkname simStopAfter runtime.simStopAfter
func simStopAfter(group uint32, points uint64, ns int64)

//go:linkname simDelayAfter runtime.simDelayAfter
func simDelayAfter(group uint32, points uint64, ns int64)

//go:linkname simQuiet runtime.simQuiet
func simQuiet(delta int32)
