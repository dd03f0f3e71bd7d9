//go:build !skewed_clock

package cluster

import "time"

// wallClock reads the machine's wall clock: milliseconds since the Unix epoch.
func wallClock() int64 { return time.Now().UnixMilli() }
