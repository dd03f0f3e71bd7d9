package corrected

import (
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
)

// follower is what raft v1.7.3 does with an AppendEntries, as far as it concerns the log: a model of raft.appendEntries.
type follower struct {
	terms    map[uint64]uint64 // by index, behind what was cut
	snapshot uint64
	last     uint64
	commit   uint64
}

func (f *follower) append(request *raft.AppendEntriesRequest, snapshotTerm uint64) bool {
	if previous := request.PrevLogEntry; previous > 0 {
		term, has := f.terms[previous]
		if !has && previous == f.snapshot { // the log answers for it
			term, has = snapshotTerm, true
		}
		if !has || term != request.PrevLogTerm {
			return false
		}
	}
	for _, entry := range request.Entries {
		if entry.Index > f.last || f.terms[entry.Index] != entry.Term {
			for index := entry.Index; index <= f.last; index++ {
				delete(f.terms, index)
			}
			f.last = entry.Index
		}
		f.terms[entry.Index] = entry.Term
	}
	f.commit = max(f.commit, min(request.LeaderCommitIndex, f.last))
	return true
}

// Whatever a follower's log holds behind its snapshot, and wherever a leader begins: it commits nothing but the leader's entries, and takes
// what begins at or below the snapshot.
func TestEntriesBelowTheSnapshot(t *testing.T) {
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 1))
		leader := []uint64{0} // terms, by index
		for term := uint64(1); len(leader) < 2+random.IntN(30); {
			leader = append(leader, term)
			term += uint64(random.IntN(2))
		}
		last := uint64(len(leader) - 1)
		f := &follower{terms: map[uint64]uint64{}, snapshot: random.Uint64N(last + 1)}
		f.commit, f.last = f.snapshot, f.snapshot
		for index := f.snapshot - min(f.snapshot, random.Uint64N(3)); index <= f.snapshot && index > 0; index++ {
			f.terms[index] = leader[index] // trailing entries; without the snapshot's own at times
		}
		if random.IntN(2) == 0 {
			clear(f.terms)
		}
		for same := random.IntN(2) == 0; f.last < last+3 && random.IntN(6) > 0; f.last++ {
			if same = same && f.last < last && random.IntN(4) > 0; same {
				f.terms[f.last+1] = leader[f.last+1]
			} else {
				f.terms[f.last+1] = 1000 // of a leader that was deposed
			}
		}
		before := random.Uint64N(last + 1)
		request := &raft.AppendEntriesRequest{Term: 2000, PrevLogEntry: before, PrevLogTerm: leader[before], LeaderCommitIndex: random.Uint64N(last + 1)}
		for index := before + 1; index <= last && random.IntN(8) > 0; index++ {
			request.Entries = append(request.Entries, &raft.Log{Index: index, Term: leader[index]})
		}
		heartbeat := before == 0 && len(request.Entries) == 0
		if heartbeat {
			request.LeaderCommitIndex = 0
		}
		sent := *request
		taken := f.append(fromSnapshot(request, func() (uint64, uint64) { return f.snapshot, leader[f.snapshot] }), leader[f.snapshot])
		if !taken && before <= f.snapshot && !heartbeat {
			t.Fatalf("seed %d: rejected behind %d, with a snapshot at %d", seed, before, f.snapshot)
		}
		for index := f.snapshot + 1; index <= f.commit; index++ {
			if index > last || f.terms[index] != leader[index] {
				t.Fatalf("seed %d: committed to %d, and has another entry than the leader at %d", seed, f.commit, index)
			}
		}
		if reached := before + uint64(len(sent.Entries)); taken && f.commit < min(reached, sent.LeaderCommitIndex) {
			t.Fatalf("seed %d: committed %d of %d", seed, f.commit, min(reached, sent.LeaderCommitIndex))
		}
		if request.PrevLogEntry != sent.PrevLogEntry || len(request.Entries) != len(sent.Entries) || request.LeaderCommitIndex != sent.LeaderCommitIndex {
			t.Fatalf("seed %d: the sender's request was changed", seed)
		}
	}
}
