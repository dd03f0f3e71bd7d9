package node

import (
	"math"
	"runtime/debug"
	"testing"
)

// AvailableMemory ignores the limit that LimitMemory has set for the garbage collector.
func TestAvailableMemoryIgnoresItsOwnLimit(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	before := AvailableMemory()
	LimitMemory()
	if after := AvailableMemory(); after != before {
		t.Errorf("%d bytes before, %d after", before, after)
	}
}
