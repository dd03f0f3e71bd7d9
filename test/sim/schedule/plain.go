//go:build !replay

package schedule

import "time"

// Replays reports whether runs can be repeated.
const Replays = false

// Start begins a run. Without the overlay Go decides who runs.
func Start(Settings, []Switch) {}

// Finish ends a run.
func Finish() (Summary, int) { return Summary{}, 0 }

// Calm ends the drawing of stops, delays and demotions. Without the overlay there are none.
func Calm() {}

// Enter puts the calling goroutine into a group. Without the overlay it does nothing.
func Enter(int) {}

// Stop stops a group for a virtual time. Without the overlay it does nothing.
func Stop(int, time.Duration) {}

// StopAfter stops a group when its goroutines have passed some synchronisation points. Without the
// overlay it does nothing.
func StopAfter(int, uint64, time.Duration) {}

// DelayAfter lets one goroutine of a group sleep. Without the overlay it does nothing.
func DelayAfter(int, uint64, time.Duration) {}

func quiet(int32) {}
