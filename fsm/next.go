//go:build !mutant_entry_order

package fsm

// isNext reports whether an entry is the next of the leader that serves: neither one that a leader slipped in before its LeaderStart,
// nor one behind an entry that was lost.
func (m *Machine) isNext(term uint64, entry *Entry) bool {
	return term == m.leader.term && entry.Term == term && entry.Number == m.leader.number+1
}
