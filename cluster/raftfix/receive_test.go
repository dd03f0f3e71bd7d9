package raftfix_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"holdfast/cluster/raftfix"
	"holdfast/cluster/raftlog"
	"holdfast/fsm"
)

// state is the state machine of a follower: it notes what is applied.
type state struct {
	mu      sync.Mutex
	applied uint64
	terms   map[uint64]uint64 // the terms of the applied entries, by index
	back    bool              // an older state replaced a newer one
	slow    chan struct{}     // if not nil, writing a snapshot waits until it is closed
	writing chan struct{}     // closed when writing a slow snapshot begins
}

func (s *state) Apply(log *raft.Log) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied, s.terms[log.Index] = log.Index, log.Term
	return nil
}

func (s *state) Snapshot() (raft.FSMSnapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return written{s.applied, s.slow, s.writing}, nil
}

func (s *state) Restore(snapshot io.ReadCloser) error {
	data, err := io.ReadAll(snapshot)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	index := binary.BigEndian.Uint64(data)
	s.back = s.back || index < s.applied
	s.applied = index
	return nil
}

type written struct {
	index         uint64
	slow, writing chan struct{}
}

func (w written) Persist(sink raft.SnapshotSink) error {
	if w.slow != nil {
		close(w.writing)
		<-w.slow
	}
	if _, err := sink.Write(binary.BigEndian.AppendUint64(nil, w.index)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (written) Release() {}

// follower is a raft member whose leader is played by the test.
type follower struct {
	t       *testing.T
	state   *state
	raft    *raft.Raft
	log     *raftlog.CheckedLog
	entries *raft.InmemStore // the store beneath log
	wire    *raft.InmemTransport
	slow    chan struct{} // finishSnapshot closes it; nil if no snapshot is under way
	done    chan struct{} // closed when the snapshot under way is done
}

const patience = 10 * time.Second

func startFollower(t *testing.T, trailing uint64) *follower {
	f := &follower{t: t, state: &state{terms: make(map[uint64]uint64)}}
	store := raft.NewInmemStore()
	f.entries = store
	f.log = raftlog.NewCheckedLog(store,
		raftlog.Guard{Deadline: time.Minute, Exit: func(err error) { t.Error(err) }}, 0)
	snapshots, err := raftlog.NewSnapshotStore(raft.NewInmemSnapshotStore(), func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	_, own := raft.NewInmemTransportWithTimeout("n1", patience)
	_, f.wire = raft.NewInmemTransportWithTimeout("n2", patience)
	f.wire.Connect("n1", own)
	own.Connect("n2", f.wire)
	config := raft.DefaultConfig()
	config.LocalID, config.TrailingLogs, config.NoLegacyTelemetry, config.Logger = "n1", trailing,
		true, hclog.NewNullLogger()
	config.HeartbeatTimeout, config.ElectionTimeout, config.LeaderLeaseTimeout = time.Hour,
		time.Hour, time.Hour
	if err := raft.BootstrapCluster(config, f.log, store, snapshots, own, members()); err != nil {
		t.Fatal(err)
	}
	transport := raftfix.New(own, f.log, snapshots.Newest)
	f.log.SetFollowerSnapshot(transport.FollowerSnapshot)
	if f.raft, err = raft.NewRaft(config, f.state, f.log, store, snapshots, transport); err != nil {
		t.Fatal(err)
	}
	transport.Start(f.raft)
	t.Cleanup(func() {
		f.finishSnapshot()
		if err := f.raft.Shutdown().Error(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func members() raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{
		{ID: "n1", Address: "n1"},
		{ID: "n2", Address: "n2"},
	}}
}

// beginSnapshot begins a snapshot that is written when finishSnapshot is called.
func (f *follower) beginSnapshot() {
	if f.slow != nil {
		return
	}
	f.slow, f.done = make(chan struct{}), make(chan struct{})
	f.state.mu.Lock()
	f.state.slow, f.state.writing = f.slow, make(chan struct{})
	writing := f.state.writing
	f.state.mu.Unlock()
	go func() {
		defer close(f.done)
		_ = f.raft.Snapshot().Error() // there may be nothing new, or a newer one
	}()
	select {
	case <-writing:
	case <-f.done:
	}
}

func (f *follower) finishSnapshot() {
	if f.slow == nil {
		return
	}
	close(f.slow)
	<-f.done
	f.slow = nil
	f.state.mu.Lock()
	f.state.slow = nil
	f.state.mu.Unlock()
}

// leader is the state that a raft leader keeps: of its log, and of one follower.
type leader struct {
	term     uint64
	terms    []uint64 // the terms of its entries, by index
	commit   uint64
	first    uint64 // index of the first entry that is not compacted
	snapshot uint64 // index of the newest snapshot's last entry
	next     uint64 // the follower's next index
}

func (l *leader) last() uint64 { return uint64(len(l.terms) - 1) }

var header = raft.RPCHeader{
	ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n2"),
	Addr: []byte("n2"),
}

// replicate sends the next request that a raft leader would send: its snapshot, or entries up to an
// index. It reports whether the follower accepted the request. With lost, the leader does not learn
// that it did.
func (l *leader) replicate(f *follower, upTo uint64, lost bool) bool {
	f.t.Helper()
	previous := l.next - 1
	if l.next < l.first && previous != l.snapshot || previous > 0 && previous < l.first &&
		previous != l.snapshot {
		request := raft.InstallSnapshotRequest{
			RPCHeader: header, SnapshotVersion: 1, Term: l.term, LastLogIndex: l.snapshot,
			LastLogTerm:   l.terms[l.snapshot],
			Configuration: raft.EncodeConfiguration(members()), ConfigurationIndex: 1, Size: 8,
		}
		var answer raft.InstallSnapshotResponse
		data := bytes.NewReader(binary.BigEndian.AppendUint64(nil, l.snapshot))
		if err := f.wire.InstallSnapshot("n1", "n1", &request, &answer, data); err != nil {
			f.t.Fatal(err)
		}
		if answer.Success && !lost {
			l.next = l.snapshot + 1
		}
		return answer.Success
	}
	request := raft.AppendEntriesRequest{
		RPCHeader: header, Term: l.term, PrevLogEntry: previous,
		PrevLogTerm: l.terms[previous], LeaderCommitIndex: l.commit,
	}
	for index := l.next; index <= min(upTo, l.next+3); index++ {
		entry := &raft.Log{
			Index: index, Term: l.terms[index], Type: raft.LogCommand,
			Data: fsm.AppendEntry(nil, &fsm.Entry{}),
		}
		if index == 1 {
			entry.Type, entry.Data = raft.LogConfiguration, raft.EncodeConfiguration(members())
		}
		request.Entries = append(request.Entries, entry)
	}
	var answer raft.AppendEntriesResponse
	if err := f.wire.AppendEntries("n1", "n1", &request, &answer); err != nil {
		f.t.Fatal(err)
	}
	switch {
	case !answer.Success:
		l.next = max(min(l.next-1, answer.LastLog+1), 1)
	case !lost:
		l.next += uint64(len(request.Entries))
	}
	return answer.Success
}

// compact takes a snapshot of what is committed and cuts the log.
func (l *leader) compact(trailing uint64) {
	l.snapshot = l.commit
	l.first = max(l.first, l.snapshot+1-min(trailing, l.snapshot))
}

// In random orders, leaders change, acknowledgements are lost, logs are compacted, and snapshots
// are taken and received. The follower's state never goes back, and it applies only committed
// entries. Each leader that stays until all its entries are committed brings the follower up to
// date.
func TestFollowerTakesWhatALeaderSends(t *testing.T) {
	seeds := uint64(3000)
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 1))
		f := startFollower(t, random.Uint64N(3))
		committed := []uint64{0, 1} // terms, by index: the first is the configuration
		for term := uint64(2); term < 12 && !t.Failed(); term++ {
			l := &leader{
				term: term, terms: append([]uint64(nil), committed...),
				commit: uint64(len(committed) - 1), first: 1,
			}
			l.next = l.last() + 1
			if random.IntN(2) == 0 {
				l.compact(random.Uint64N(3))
			}
			for range random.IntN(16) {
				switch random.IntN(9) {
				case 0:
					f.beginSnapshot()
				case 1:
					f.finishSnapshot()
				case 2:
					l.compact(random.Uint64N(3))
				case 3:
					l.commit = min(l.last(), l.commit+random.Uint64N(4))
				case 4:
					// raft's pipeline failed, and what it had acknowledged was lost
					l.next = max(1, l.next-min(l.next-1, random.Uint64N(10)))
				case 5, 6:
					for range random.IntN(4) {
						l.terms = append(l.terms, term)
					}
				default:
					l.replicate(f, l.last(), random.IntN(3) == 0)
				}
			}
			stays := random.IntN(2) == 0
			if stays {
				for range random.IntN(3) {
					l.terms = append(l.terms, term)
				}
				l.commit = l.last()
			}
			committed = l.terms[:l.commit+1] // the rest is lost with the leader
			if !stays {
				continue
			}
			f.finishSnapshot()
			for attempts := 4 * (len(committed) + 4); l.next <= l.commit ||
				!l.replicate(f, l.commit, false); attempts-- {
				if l.replicate(f, l.commit, false); attempts == 0 {
					t.Fatalf("seed %d: in term %d the follower does not take what comes behind %d of %d; log from %d, snapshot at %d", seed, term, l.next-1, l.commit, l.first, l.snapshot)
				}
			}
			f.reaches(seed, l.commit)
		}
		f.check(seed, committed)
	}
}

// reaches waits until the follower has applied an index.
func (f *follower) reaches(seed, index uint64) {
	f.t.Helper()
	for deadline := time.Now().Add(patience); f.raft.AppliedIndex() < index; time.Sleep(
		100 * time.Microsecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("seed %d: applied %d of %d", seed, f.raft.AppliedIndex(), index)
		}
	}
}

func (f *follower) check(seed uint64, committed []uint64) {
	f.t.Helper()
	f.state.mu.Lock()
	defer f.state.mu.Unlock()
	if f.state.back {
		f.t.Errorf("seed %d: an older state replaced a newer one", seed)
	}
	for index := uint64(1); index <= f.raft.CommitIndex(); index++ {
		entry := &raft.Log{}
		if err := f.entries.GetLog(index, entry); err == nil && entry.Term != committed[index] {
			f.t.Errorf("seed %d: the log has another entry at %d than the one that is committed",
				seed, index)
		}
	}
	for index, term := range f.state.terms {
		if index >= uint64(len(committed)) || committed[index] != term {
			f.t.Errorf("seed %d: another entry was applied at %d than the one that is committed",
				seed, index)
		}
	}
}
