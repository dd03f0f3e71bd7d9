//go:build !mutant_dedup_crowded

package fsm

// room reports whether an outcome of the client may be added without touching the reserve. No client fills more than half of
// the table, its refusals included.
func (d *dedup) room(client uint64, limit int64) bool {
	main := limit - limit/10
	return int64(d.byID.Len())-d.reserve < main && d.clients[client] < limit/2-limit/20
}
