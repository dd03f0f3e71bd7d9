//go:build mutant_wall_expiry

package fsm

// timeOf follows the wall clock.
func (m *Machine) timeOf(entry *Entry) int64 { return max(m.now, entry.Wall) }
