//go:build !mutant_dedup_off

package fsm

// find returns the outcome of a request, if it is remembered.
func (d *dedup) find(id RequestID) (memory, bool) { return d.byID.Get(memory{id: id}) }
