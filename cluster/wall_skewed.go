//go:build skewed_clock

package cluster

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// wallClock reads the machine's wall clock and adds the milliseconds in the file that CHAOS_CLOCK_OFFSET_FILE names. It is for
// tests: containers have no clocks of their own.
func wallClock() int64 {
	now := time.Now().UnixMilli()
	text, err := os.ReadFile(os.Getenv("CHAOS_CLOCK_OFFSET_FILE"))
	if err != nil {
		return now
	}
	offset, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return now
	}
	return now + offset
}
