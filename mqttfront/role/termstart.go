package role

// termStart is where the log was at the current leader's LeaderStart (the first entry of a leadership), as far as this node knows.
type termStart struct {
	term      uint64 // Raft term; 0 until a LeaderStart was applied or a snapshot restored
	published uint64 // the delivery watermark at that moment
	// index is that of the LeaderStart. If a snapshot skipped the LeaderStart, it is the snapshot's, which is not lower. It is 0 if that snapshot was the
	// first thing that this process applied.
	index uint64
}

// mayBeUnanswered reports whether an earlier leader executed the request with an outcome at an index, and may not have
// published the reply. The present watermark does not tell: a leader that does not know that a node holds the request publishes no
// reply to it, and still moves the watermark past the index.
func (t termStart) mayBeUnanswered(index uint64) bool { return index > t.published && index <= t.index }
