package fsm

import (
	"fmt"
	"runtime"
	"testing"
)

// A million keys of 20 bytes with values of 100 bytes cost at most 110 bytes of live heap each beside key and value.
func TestMemoryPerKey(t *testing.T) {
	const keys, batch, keySize, valueSize, most = 1_000_000, 1000, 20, 100, 110
	l := newLeader(t)
	before := heap()
	commands := make([]Command, batch)
	for i := 0; i < keys; i += batch {
		for j := range commands {
			commands[j] = l.set(fmt.Sprintf("key-%016d", i+j), string(make([]byte, valueSize)))
		}
		l.apply(commands...)
		l.log = l.log[:0] // the log is not what is measured
	}
	l.log = nil
	clear(commands)
	perKey := (float64(heap())-float64(before))/keys - keySize - valueSize
	t.Logf("%.1f bytes of live heap per key over key and value", perKey)
	if status := l.m.Status(); status.Keys != keys || perKey > most {
		t.Errorf("%d keys, %.1f bytes per key", status.Keys, perKey)
	}
	runtime.KeepAlive(l)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
