//go:build !linux

package client

import "time"

// sinceBoot is implemented for Linux only. Elsewhere a moment has Go's monotonic clock alone.
func sinceBoot() time.Duration { return 0 }
