package cluster

import "time"

// Clock is the node's sources of time.
type Clock struct {
	Wall      func() int64         // milliseconds since the Unix epoch
	Monotonic func() time.Duration // since any fixed moment; never goes back
}

// SystemClock returns the machine's clock.
func SystemClock() Clock {
	start := time.Now()
	return Clock{
		Wall:      wallClock,
		Monotonic: func() time.Duration { return time.Since(start) },
	}
}

// wallClock reads the machine's wall clock: milliseconds since the Unix epoch.
func wallClock() int64 { return time.Now().UnixMilli() }
