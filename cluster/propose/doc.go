// Package propose batches a leader's commands into log entries, submits these to raft, and reports
// what became of the commands.
//
// Proposer.mu is last in the lock order of package cluster: no other lock is taken while it is
// held.
package propose
