package node

import (
	"math"
	"runtime/debug"
	"testing"
)

// The limit that the node sets for its garbage collector is not taken for a limit of its memory.
func TestAvailableMemoryIgnoresItsOwnLimit(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	before := AvailableMemory()
	LimitMemory()
	if after := AvailableMemory(); after != before {
		t.Errorf("%d bytes before, %d after", before, after)
	}
}
