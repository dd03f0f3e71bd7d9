package role

// termStart is where the log was when a leader began to serve. If the node was caught up by a snapshot, the index is that of the snapshot, which the
// leader began before.
type termStart struct {
	term      uint64 // raft's; 0 until a LeaderStart was applied or a snapshot restored
	published uint64 // delivery watermark
	index     uint64
}

// mayBeUnanswered reports whether an earlier leader executed the request with an outcome at an index, and may not have
// published the reply. The watermark does not tell: a leader that no node told of the request publishes no reply to it, and
// moves the watermark past the index.
func (t termStart) mayBeUnanswered(index uint64) bool { return index > t.published && index <= t.index }
