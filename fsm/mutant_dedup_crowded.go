//go:build mutant_dedup_crowded

package fsm

import (
	"bytes"
	"slices"
)

// room makes room by forgetting what would be forgotten first.
func (d *dedup) room(_ uint64, limits *Limits) bool {
	limit := limits.DedupEntries
	for int64(d.byID.Len()) >= limit-limit/10 {
		_, ids, ok := d.byExpiry.Min()
		if !ok {
			break
		}
		oldest := slices.MinFunc(ids, func(a, b RequestID) int { return bytes.Compare(a[:], b[:]) })
		unit, _, _ := d.byExpiry.Min()
		if ids = slices.DeleteFunc(slices.Clone(ids), func(id RequestID) bool { return id == oldest }); len(ids) == 0 {
			d.byExpiry.Delete(unit)
		} else {
			d.byExpiry.Set(unit, ids)
		}
		d.drop(oldest)
	}
	return true
}
