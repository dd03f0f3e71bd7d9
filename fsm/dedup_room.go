//go:build !mutant_dedup_crowded

package fsm

// room reports whether an outcome of the client may be added without touching the reserve.
func (d *dedup) room(client uint64, limits *Limits) bool {
	main := limits.DedupEntries - limits.DedupEntries/10
	share := limits.dedupShare()
	return int64(d.byID.Len())-d.reserve < main && d.clients[client] < share-share/10
}
