// Package corrected puts a transport between hashicorp/raft v1.7.3 and the members' connections that corrects four of raft's rules. All four
// hold whatever version of Holdfast the other members run: nothing changes on the wire.
//
// # Heartbeats
//
// Raft handles heartbeats on the transport's goroutine, so that a slow disk does not delay them, by code that "must only be called
// from the main thread". There a heartbeat of a newer term raises the term while the main goroutine counts the votes of its election in
// an older one. The last vote then makes this node a leader in a term in which it was not elected: two leaders write different entries
// at the same index and term, and the replicas diverge. So a heartbeat takes that way only at a follower that knows the term already, where
// nothing but the leader's name and the time of the last contact can change. Others are answered as not successful. A leader sends entries right after its
// election, which raise the term on the main goroutine.
//
// # Votes
//
// Raft lets a voter grant no vote to a candidate that the voter's own configuration does not name as a voter. Suppose that a leader promotes a
// member, that only these two store the entry, and that the leader is lost. The promoted member is then the only one with all entries, and the
// other voters refuse to elect it. Votes are safe whatever a voter's configuration says, because a candidate counts the votes of the voters in
// its own configuration. So this transport repeats a request for a vote that was not granted, with the receiver's id where raft looks for the
// candidate's id: the receiver may be a voter in its own configuration. The receiver records the candidate's address, which stays, and grants
// one vote in a term.
//
// # Snapshots that are not needed
//
// A leader that lacks a follower's acknowledgements of more entries than it keeps behind its own snapshot sends that snapshot. The follower
// may have applied more. Raft restores the older state over the newer one. What lies between the two may have been cut from the follower's log
// already: the next entry that is committed ends the process. So a follower is asked first whether it has the snapshot's last entry, by an
// AppendEntries without entries. If it has, it has all before (the Log Matching Property), and the snapshot counts as installed.
//
// What the follower's own snapshot holds is committed, so that every leader has the same entries up to it (Leader Completeness). So an AppendEntries
// that begins at or below the snapshot begins behind it instead, whatever the log still has there. This holds as long as nobody calls raft.Restore, which makes a
// snapshot that is not committed.
//
// # Commit index
//
// Raft commits up to the smaller of the leader's commit index and the last index of the follower's log, whether or not that part of the log has
// been compared with the leader's. The Raft paper says "index of last new entry" (figure 2). So an AppendEntries carries no commit index
// beyond its last entry.
package corrected
