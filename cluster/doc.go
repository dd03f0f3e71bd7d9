// Package cluster replicates the state machine with Raft: it proposes, reads, leads, joins, snapshots.
//
// A Node is one member. While it leads, one goroutine (propose.go) turns queued commands into log entries, another (read.go)
// answers reads by read index, and the Observer, which is the front end, is told of everything in the order in which it was
// applied. There is one place in the code that calls raft's Apply (propose.go) and one that calls the machine's (apply.go).
//
// What raft says of leadership is a hint, never a proof: its channels drop events, its State may be stale, and its
// VerifyLeader accepts answers to questions that were asked before. So each leadership begins with a LeaderStart in the log,
// every entry carries its term and number, and reads are confirmed by fresh answers of the voters.
package cluster
