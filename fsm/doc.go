// Package fsm is the deterministic state machine of the store: log entries in, results and
// notifications out.
//
//	m := fsm.New()
//	data := fsm.AppendEntry(nil, &fsm.Entry{…, Commands: commands})
//	outcome, err := m.Apply(index, term, data) // on every replica, in the order of the log
//	outcome.Results[0]                         // what the first command came to
//	outcome.Events                             // who is to be notified of which change
//	result := m.Read(&fsm.Command{Kind: fsm.KindGet, Key: key})
//	snapshot := m.Snapshot() // may be written while m goes on
//	err = snapshot.Write(w)
//	err = other.Restore(r)
//
// Every replica applies the same entries in the same order and comes to the same state, byte for
// byte. So nothing in here reads a clock, a random source, the file system or the network, nothing
// starts a goroutine, and no decision depends on the order of a Go map. All that the machine knows
// of the world is in the entry. A test enforces the imports.
//
// Three clocks appear in an entry, and they must not be mixed up:
//
//   - cluster time (Status.Now) decides expiry, deduplication and the lifetime of watches. It is
//     the cluster time at the LeaderStart (the entry with which the serving leader began) plus the
//     leader's monotonic time since it applied that entry. It never goes back, never reads a wall
//     clock, and stands still while there is no leader: no lock is lost early because a clock
//     jumped or an election took long.
//   - the cluster clock (Status.Wall) is in milliseconds since the Unix epoch. The leader stamps
//     each entry with the lower median of the members' wall clocks. Versions and skew checks use
//     it. It never goes back.
//   - the hybrid logical clock is what versions are made of; see package hlc.
package fsm
