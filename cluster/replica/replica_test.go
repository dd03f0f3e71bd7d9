package replica

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
)

// recorder records the calls of a replica to its Environment.
type recorder struct {
	exits    []error
	outcomes []*fsm.EntryOutcome
	walls    []int64
	restores int
}

func (r *recorder) env() Environment {
	return Environment{
		Applied:      func(o *fsm.EntryOutcome) { r.outcomes = append(r.outcomes, o) },
		ObserveApply: func(*fsm.EntryOutcome, time.Duration) {},
		Restored:     func(fsm.Status) { r.restores++ },
		WallAdvanced: func(wall int64) { r.walls = append(r.walls, wall) },
		Exit:         func(err error) { r.exits = append(r.exits, err) },
		Monotonic:    func() time.Duration { return 0 }, Pause: func(time.Duration, int64) {},
	}
}

func log(index uint64, entry fsm.Entry) *raft.Log {
	return &raft.Log{
		Index: index, Term: 1, Type: raft.LogCommand,
		Data: fsm.AppendEntry(nil, &entry),
	}
}

func leaderStart() fsm.Entry {
	return fsm.Entry{Commands: []fsm.Command{{
		Kind: fsm.KindLeaderStart, Nonce: 1,
		Version: fsm.Version,
	}}}
}

// † An entry that cannot be applied halts the node rather than letting its state diverge.
func TestEntryThatCannotBeAppliedHaltsTheReplica(t *testing.T) {
	r := &recorder{}
	replica := New(r.env())
	replica.Apply(log(1, leaderStart()))
	before := replica.Status()
	unknown := log(2, fsm.Entry{Term: 1, Number: 1, Commands: []fsm.Command{{Kind: 99}}})
	if err, _ := replica.Apply(unknown).(error); !errors.Is(err, fsm.ErrUnknown) {
		t.Fatal(err)
	}
	if len(r.exits) != 1 || !errors.Is(r.exits[0], ErrHalted) {
		t.Errorf("exits with %v", r.exits)
	}
	if err, _ := replica.Apply(log(3, leaderStart())).(error); !errors.Is(err, ErrHalted) ||
		replica.Status() != before {
		t.Errorf("goes on: %v", err)
	}
	if _, err := replica.Snapshot(); !errors.Is(err, ErrHalted) {
		t.Errorf("writes a snapshot: %v", err)
	}
}

// Each entry is reported once, and the hash of its state is known. A wall clock that goes back is
// not reported.
func TestReplicaReportsEachEntry(t *testing.T) {
	r := &recorder{}
	replica := New(r.env())
	_, changed := replica.StatusAndChange()
	replica.Apply(log(1, leaderStart()))
	for i, wall := range []int64{1000, 2000, 1500} {
		replica.Apply(log(uint64(i+2), fsm.Entry{Term: 1, Number: uint64(i + 1), Wall: wall}))
	}
	select {
	case <-changed:
	default:
		t.Error("the channel for the next change is not closed")
	}
	if len(r.outcomes) != 4 || len(r.walls) != 2 || r.walls[1] != 2000 {
		t.Errorf("%d outcomes, clocks %v", len(r.outcomes), r.walls)
	}
	if hash, known := replica.Hash(4); !known || hash != replica.Status().Hash {
		t.Errorf("hash %x, %v; the state has %x", hash, known, replica.Status().Hash)
	}
	if _, known := replica.Hash(5); known {
		t.Error("knows the hash of an entry to come")
	}
}

// A restored replica has the state of the snapshot.
func TestRestoredReplicaHasTheSnapshotsState(t *testing.T) {
	from := New((&recorder{}).env())
	from.Apply(log(1, leaderStart()))
	from.Apply(log(2, fsm.Entry{Term: 1, Number: 1, Wall: 7}))
	var snapshot bytes.Buffer
	if err := from.Capture().Write(&snapshot); err != nil {
		t.Fatal(err)
	}
	restored := &recorder{}
	to := New(restored.env())
	if err := to.Restore(io.NopCloser(&snapshot)); err != nil {
		t.Fatal(err)
	}
	if to.Status() != from.Status() {
		t.Errorf("%+v, want %+v", to.Status(), from.Status())
	}
	if len(restored.walls) != 1 || restored.walls[0] != 7 {
		t.Errorf("the wall clock of the snapshot is told as %v", restored.walls)
	}
	if err := to.Restore(io.NopCloser(bytes.NewReader([]byte("damaged")))); err == nil ||
		to.Status() != from.Status() {
		t.Errorf("a damaged snapshot: %v, %+v", err, to.Status())
	}
	if restored.restores != 1 {
		t.Errorf("%d restores are told of", restored.restores)
	}
}

// A snapshot covers the entries that were applied when it was captured. Those that are applied
// while it is written count for the next one.
func TestBytesAppliedDuringASnapshotCountForTheNext(t *testing.T) {
	replica := New((&recorder{}).env())
	var next uint64
	apply := func() (bytes int64) {
		next++
		entry := log(next, leaderStart())
		replica.Apply(entry)
		return int64(len(entry.Data))
	}
	expect := func(when string, want int64) {
		t.Helper()
		if got := replica.BytesSinceSnapshot(); got != want {
			t.Errorf("%s: %d bytes, want %d", when, got, want)
		}
	}
	first := apply()
	snapshot, err := replica.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Release()
	second := apply()
	expect("before it is written", first+second)
	sink, err := raft.NewInmemSnapshotStore().Create(1, 1, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Persist(sink); err != nil {
		t.Fatal(err)
	}
	expect("written", second)

	var state bytes.Buffer
	captured := replica.Capture()
	defer captured.Release()
	if err := captured.Write(&state); err != nil {
		t.Fatal(err)
	}
	if err := replica.Restore(io.NopCloser(&state)); err != nil {
		t.Fatal(err)
	}
	expect("restored", 0)
}
