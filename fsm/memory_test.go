package fsm

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// A million keys of 20 bytes with values of 100 bytes cost at most 110 bytes of live heap each
// beside key and value.
func TestMemoryPerKeyIsBounded(t *testing.T) {
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

// A million outcomes cost at most 100 bytes of live heap each.
func TestMemoryPerOutcomeIsBounded(t *testing.T) {
	const outcomes, most = 1_000_000, 100
	before := heap()
	d := newDedup()
	random := rand.New(rand.NewPCG(1, 1))
	for n := range int64(outcomes) {
		m := dedupEntry{
			expires: 180_000 + n/10, client: uint64(n % 1000), index: uint64(n),
			code: CodeOK,
		}
		binary.LittleEndian.PutUint64(m.id[:], random.Uint64())
		d.put(m, nil)
	}
	each := (float64(heap()) - float64(before)) / outcomes
	t.Logf("%.1f bytes of live heap per outcome", each)
	if d.len() != outcomes || each > most {
		t.Errorf("%d outcomes, %.1f bytes per outcome", d.len(), each)
	}
	runtime.KeepAlive(d)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
