//go:build !mutant_wall_expiry

package fsm

// timeOf returns the cluster time of an entry: what it was at the LeaderStart, and the leader's monotonic time since. It never goes
// back, and no wall clock has a part in it.
func (m *Machine) timeOf(entry *Entry) int64 { return max(m.now, m.leader.start+entry.Elapsed) }
