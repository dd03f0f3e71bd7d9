package node

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// LimitMemory sets the memory limit of the garbage collector to nine tenths of AvailableMemory,
// unless GOMEMLIMIT is set. The rest is for memory that Go does not count.
func LimitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(AvailableMemory() / 10 * 9)
	}
}

// AvailableMemory returns the bytes of memory that this process may use: the least of GOMEMLIMIT,
// the limit of the container's control group, and what the machine has. If none is known it is 1
// GiB.
func AvailableMemory() int64 {
	available := int64(math.MaxInt64)
	if os.Getenv("GOMEMLIMIT") != "" {
		available = debug.SetMemoryLimit(-1)
	}
	for _, limit := range []int64{controlGroupLimit(), machineMemory()} {
		if limit > 0 {
			available = min(available, limit)
		}
	}
	if available == math.MaxInt64 {
		return 1 << 30 // nothing is known of the machine
	}
	return available
}

func controlGroupLimit() int64 {
	for _, file := range []string{
		"/sys/fs/cgroup/memory.max",
		"/sys/fs/cgroup/memory/memory.limit_in_bytes",
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
			return limit
		}
	}
	return 0
}

func machineMemory() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
