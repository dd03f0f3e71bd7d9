package fsm

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// naiveDedup is the dedup table as a map.
type naiveDedup map[RequestID]dedupEntry

func (n naiveDedup) inOrder() []dedupEntry {
	return slices.SortedFunc(maps.Values(n),
		func(a, b dedupEntry) int { return bytes.Compare(a.id[:], b.id[:]) })
}

// The dedup table agrees with a map, in whatever order outcomes are added, prolonged and removed.
// What a snapshot captured does not change meanwhile.
func TestDedupAgainstModel(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		d, model, now := newDedup(), naiveDedup{}, int64(0)
		type snapshot struct {
			got  captured
			want []dedupEntry
		}
		var snapshots []snapshot
		for range 3000 {
			var id RequestID
			// several ids share their first bits
			binary.BigEndian.PutUint16(id[:], uint16(random.IntN(400))<<6)
			switch choice := random.IntN(20); {
			case choice < 10:
				m := dedupEntry{
					id: id, expires: now + random.Int64N(8000),
					client: random.Uint64N(3), index: random.Uint64(),
				}
				if random.IntN(5) == 0 {
					m.flags = dedupReserve
				}
				if _, known := d.find(id); !known {
					d.put(m, nil)
					model[id] = m
				}
			case choice < 18:
				if m, known := d.find(id); known {
					until := now + random.Int64N(8000)
					d.prolong(m, until)
					m.expires = max(m.expires, until)
					model[id] = m
				}
			case choice < 19:
				now += random.Int64N(3000)
				d.removeExpired(now)
				maps.DeleteFunc(model,
					func(_ RequestID,
						m dedupEntry,
					) bool {
						return m.expiryKey()>>expiryIDBits <= now>>expiryShift
					})
			default:
				snapshots = append(snapshots, snapshot{d.capture(), model.inOrder()})
			}
			got, known := d.find(id)
			if want, expected := model[id]; known != expected || got != want {
				t.Fatalf("seed %d: found %+v, want %+v", seed, got, want)
			}
		}
		snapshots = append(snapshots, snapshot{d.capture(), model.inOrder()})
		for _, s := range snapshots {
			var got []dedupEntry
			for m := range s.got.inOrder() {
				got = append(got, *m)
			}
			if !slices.Equal(got, s.want) {
				t.Fatalf("seed %d: a snapshot has %d outcomes, want %d, or others", seed, len(got),
					len(s.want))
			}
		}
		clients, reserve := make(map[uint64]int64), int64(0)
		for m := range d.all() {
			if clients[m.client]++; m.flags&dedupReserve != 0 {
				reserve++
			}
		}
		if !maps.Equal(clients, d.clients) || reserve != d.reserve || d.len() != len(model) {
			t.Fatalf("seed %d: %d outcomes, %v, %d in the reserve; counted %v, %d", seed, d.len(),
				d.clients, d.reserve, clients, reserve)
		}
	}
}
