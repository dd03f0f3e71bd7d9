// Package cluster replicates the state machine with Raft: it proposes, reads, leads, joins,
// snapshots.
//
//	config := cluster.DefaultConfig()
//	config.ID, config.Address, config.Members = "n1.7f3a", "n1:7400", members
//	node, err := cluster.Open(config, environment, observer)
//	…
//	node.Propose(command, tag) // the observer gets the tag back with the result
//	node.Read(command, tag)    // a GET or SCAN, by read index
//	node.Flush()               // after the last of a burst
//	…
//	result, err := node.Execute(ctx, command) // Propose, and wait
//	node.View(func(m *fsm.Machine) { … })     // this member's state, which may be old
//	err = node.Membership().Add(ctx, "n4:7400", true)
//	err = node.Close(ctx)
//
// A Node is one member: a facade over parts that know nothing of it (open.go makes them). self is
// what the member knows of itself and its raft; commandRouter takes commands while the member
// leads; leaderLoop begins and ends leaderships. While the member leads, one goroutine (package
// propose) turns queued commands into log entries. Two others (package readindex) answer reads by
// read index: one the GETs, one the SCANs. On every member the Observer, which is the front end,
// gets each entry in the order of the log. Only lead.go gives entries to raft. Only package replica
// gives a running member's entries to the state machine.
//
// What raft says of leadership is a hint, never a proof: its channels drop events, its State may be
// stale, and its VerifyLeader accepts answers to questions that were asked before the call. So each
// leadership begins with an entry of its own in the log (LeaderStart). Every later entry carries
// the leadership's term and its own number, and reads are confirmed by fresh answers of the voters.
//
// Locks are taken in this order: Snapshots.restoring, Membership.Lock (package membership),
// Offerer.offering and then Offerer.composing (package offer), Replica.mu (package replica), then
// any other.
package cluster
