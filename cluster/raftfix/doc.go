// Package raftfix wraps a raft.Transport and works around five defects of hashicorp/raft v1.7.3.
// The wire format is unchanged, so members of any version can run together.
//
// # Heartbeats
//
// Raft handles heartbeats on the transport's goroutine, so that a slow disk does not delay them.
// But the function that it calls, appendEntries, "must only be called from the main thread". A
// heartbeat of a newer term raises the term while the main goroutine still counts the votes of its
// election in an older one. The last vote then makes this node a leader in a term in which it was
// not elected: two leaders write different entries at the same index and term, and the replicas
// diverge. So raft gets a heartbeat on the transport's goroutine only if it is a follower that
// knows the term already. Then only the leader's name and the time of the last contact can change.
// All other heartbeats are answered as not successful. Right after its election a leader sends
// entries, and these raise the term on the main goroutine.
//
// # Votes
//
// A voter refuses its vote to a candidate that the voter's own configuration does not name as a
// voter. Suppose that a leader promotes a member, that only these two store the entry, and that the
// leader is lost. The promoted member is then the only one with all entries, and the other voters
// refuse to elect it. If a vote or a pre-vote is refused, the transport repeats the request with
// the voter's own id as the candidate id. The voter's configuration check then passes if it is a
// voter itself. The vote stays correct: a candidate counts the votes of the voters in its own
// configuration, and the voter records the vote under the candidate's address, which is unchanged,
// and grants one vote per term.
//
// # Snapshots that are not needed
//
// A leader sends its snapshot when the entries from the follower's nextIndex on are no longer in
// the leader's log. nextIndex may be too low, because acknowledgements were lost, and the follower
// may have applied more. Raft would then restore the older state over the newer one. If the
// follower has already compacted the entries in between, raft panics when the next entry commits.
// So the transport first probes the follower's raft with an empty AppendEntries at the snapshot's
// last index. If it succeeds, the follower has all entries up to there (the Log Matching Property),
// and the snapshot is reported as installed.
//
// # Entries up to the snapshot
//
// What the follower's own snapshot holds is committed, so every leader has the same entries up to
// it (Leader Completeness). The transport makes an AppendEntries that begins at or below the
// snapshot begin after it, whatever the log still has there: raft looks only into the log, and
// rejects the request if the previous entry is missing there. Only raft.Restore, which Holdfast
// never calls, makes a snapshot that is not committed.
//
// # Commit index
//
// Raft commits up to the smaller of the leader's commit index and the last index of the follower's
// log, whether or not that part of the log has been compared with the leader's. The Raft paper says
// "index of last new entry" (figure 2). So the transport caps the commit index of an AppendEntries
// at its last entry.
package raftfix
