package propose

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"holdfast/fsm"
	"holdfast/hlc"
	"holdfast/internal/policy"
)

// † Only three errors of raft's Apply say that a command was not done.
func TestOnlyThreeErrorsOfApplyMeanNotDone(t *testing.T) {
	for _, err := range []error{
		raft.ErrNotLeader, raft.ErrEnqueueTimeout,
		raft.ErrLeadershipTransferInProgress, nil,
	} {
		t.Run(fmt.Sprint(err), func(t *testing.T) {
			if OutcomeUnknown(err) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, err := range []error{
		raft.ErrLeadershipLost, raft.ErrRaftShutdown,
		raft.ErrAbortedByRestore, errors.New("disk"), context.Canceled,
	} {
		t.Run(err.Error(), func(t *testing.T) {
			if !OutcomeUnknown(err) {
				t.Errorf("%v", err)
			}
		})
	}
}

// An entry is bounded by all that a client can put into a command, not only by its key and value.
func TestProposalSizeCountsEverything(t *testing.T) {
	big := strings.Repeat("x", 10_000)
	p := proposal{command: fsm.Command{
		Kind: fsm.KindSet, Key: []byte(big), Value: []byte(big), Expected: []byte(big),
		Timestamp: hlc.Timestamp{NodeID: big}, Token: hlc.Timestamp{NodeID: big},
		Principal: policy.Principal{
			ClientID: big, Username: big,
			Attributes: []policy.Attribute{{Name: big, Value: big}},
		},
		Rejected: []fsm.Rejection{{ClientID: big}},
		Operations: []fsm.Command{{
			Kind: fsm.KindSet, Key: []byte(big), Value: []byte(big),
			Expected: []byte(big), ExpectedVersion: hlc.Timestamp{NodeID: big},
		}},
	}}
	encoded := len(fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{p.command}}))
	if size := p.size(); size < encoded-200 || size > encoded+1000 {
		t.Errorf("counted as %d bytes, encoded as %d", size, encoded)
	}
}

// Each operation of a transaction counts towards the commands of an entry: all of them are executed
// at once. A larger transaction goes alone.
func TestOperationsCountTowardsABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := testConfig()
		config.BatchCommands = 100
		f, stop := start(t, config)
		transaction := func(operations int) fsm.Command {
			c := fsm.Command{Kind: fsm.KindTxn}
			for range operations {
				c.Operations = append(c.Operations, set())
			}
			return c
		}
		for _, command := range []fsm.Command{
			set(), transaction(60), transaction(39), set(),
			transaction(101), set(),
		} {
			if !f.proposer.Add(command, nil) {
				t.Fatal("not taken up")
			}
		}
		f.proposer.Flush()
		for i, want := range []int{3, 1, 1, 1} {
			entries := f.submitted()
			if len(entries) <= i || len(entries[i].decoded.Commands) != want {
				t.Fatalf("entry %d of %d has not %d commands", i, len(entries), want)
			}
			f.commit(entries[i])
		}
		_ = stop()
	})
}

// entry is one that a proposer submitted, and its future. It ends when the test closes done.
type entry struct {
	decoded fsm.Entry
	outcome *fsm.EntryOutcome
	halted  error // why the state machine did not apply it
	done    chan struct{}
}

func (e *entry) Error() error { <-e.done; return nil }

func (e *entry) Response() any {
	if e.halted != nil {
		return e.halted
	}
	return e.outcome
}

func (e *entry) Index() uint64 { return e.outcome.Index }

// fakeRaft is what a proposer uses: raft, which here only records the entries, and the state
// machine.
type fakeRaft struct {
	t        *testing.T
	proposer *Proposer

	mu      sync.Mutex
	entries []*entry
	failed  []any
	status  fsm.Status
}

func (f *fakeRaft) submit(data []byte) raft.ApplyFuture {
	decoded, err := fsm.DecodeEntry(data)
	if err != nil {
		f.t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	outcome := &fsm.EntryOutcome{Term: decoded.Term, Number: decoded.Number, Index: decoded.Number}
	f.entries = append(f.entries,
		&entry{decoded: *decoded, outcome: outcome, done: make(chan struct{})})
	return f.entries[len(f.entries)-1]
}

func (f *fakeRaft) Status() fsm.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *fakeRaft) failedTags() []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// submitted waits until all goroutines are blocked, and returns the entries that were submitted so
// far.
func (f *fakeRaft) submitted() []*entry {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entries
}

// commit applies an entry, and returns the tags of its commands.
func (f *fakeRaft) commit(e *entry) (tags []any) {
	tags = f.proposer.Applied(e.outcome)
	close(e.done)
	return tags
}

// start runs a proposer in a leadership that begins now. It ends with the context, or when the test
// calls stop, which commits all that is under way.
func start(t *testing.T, config Config) (f *fakeRaft, stop func() error) {
	t.Helper()
	return startWith(t, config, func() int64 { return time.Now().UnixMilli() })
}

// startWith is start with a given cluster clock. For each entry, the proposer reads the clock
// before the delivery watermark.
func startWith(t *testing.T, config Config, wall func() int64) (f *fakeRaft, stop func() error) {
	t.Helper()
	f = &fakeRaft{t: t}
	began := time.Now()
	f.proposer = New(config, Environment{
		Submit: f.submit, Status: f.Status,
		Monotonic: func() time.Duration { return time.Since(began) }, ClusterClock: wall,
		Failed: func(tag any, _ Failure) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failed = append(f.failed, tag)
		},
		StorageLow: func() bool { return false }, Proposed: func(int, int) {},
		Log: slog.New(slog.DiscardHandler),
	}, Leadership{Term: 3})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.proposer.Run(ctx) }()
	// until Run waits for a Flush: otherwise it could propose a part of the first commands
	synctest.Wait()
	return f, func() error {
		cancel(errStopped)
		for _, e := range f.submitted() {
			select {
			case <-e.done:
			default:
				f.commit(e)
			}
		}
		return <-ended
	}
}

var errStopped = errors.New("the leadership ended")

func testConfig() Config {
	return Config{
		BatchBytes: 1 << 20, BatchCommands: 1024, InFlight: 2, MinPipelined: 32,
		ProposalAge: 5 * time.Second,
	}
}

func set() fsm.Command {
	return fsm.Command{
		Kind: fsm.KindSet, Key: []byte("k"),
		Value: []byte("v"),
	}
}

func (f *fakeRaft) propose(count int) {
	for i := range count {
		if !f.proposer.Add(set(), i) {
			f.t.Error("not taken up")
		}
	}
	f.proposer.Flush()
}

// While an entry is in flight, fewer than MinPipelined queued commands wait for it. As many or more
// get another entry at once, up to InFlight entries.
func TestFewCommandsWaitForTheEntryInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := start(t, testConfig())
		f.propose(20)
		first := f.submitted()
		if len(first) != 1 || len(first[0].decoded.Commands) != 20 {
			t.Fatalf("%d entries", len(first))
		}
		f.propose(31)
		time.Sleep(time.Minute)
		if n := len(f.submitted()); n != 1 {
			t.Errorf("%d entries while one is in flight", n)
		}
		f.propose(1)
		if n := len(f.submitted()); n != 2 {
			t.Errorf("%d entries when there is enough for another one", n)
		}
		f.propose(100)
		if n := len(f.submitted()); n != 2 {
			t.Errorf("%d entries are in flight", n)
		}
		if err := stop(); !errors.Is(err, errStopped) {
			t.Errorf("ended with %v", err)
		}
		if failed := f.failedTags(); len(failed) != 100 {
			t.Errorf("%d commands of 100 that were not proposed are given back", len(failed))
		}
		if f.proposer.Add(set(), nil) {
			t.Error("takes commands after its end")
		}
	})
}

// The tags of an entry come back once, with the entry that has its number and term.
func TestTagsComeBackWithTheirEntry(t *testing.T) {
	for name, other := range map[string]func(*fsm.EntryOutcome){
		"another term":   func(o *fsm.EntryOutcome) { o.Term++ },
		"another number": func(o *fsm.EntryOutcome) { o.Number++ },
		"skipped":        func(o *fsm.EntryOutcome) { o.Skipped = true },
	} {
		t.Run("after "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, stop := start(t, testConfig())
				f.propose(2)
				e := f.submitted()[0]
				before := *e.outcome
				if other(&before); f.proposer.Applied(&before) != nil {
					t.Error("tags come back with that one")
				}
				if tags := f.commit(e); len(tags) != 2 || tags[0] != 0 || tags[1] != 1 {
					t.Errorf("tags %v", tags)
				}
				if tags := f.proposer.Applied(e.outcome); tags != nil {
					t.Errorf("again: %v", tags)
				}
				_ = stop() // why it ends is shown elsewhere
			})
		})
	}
}

// An idle leader writes nothing while nothing in the state waits for time to pass. A delivery
// watermark that has moved is in the log within 200 ms.
func TestIdleLeaderWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := start(t, testConfig())
		f.propose(1)
		f.commit(f.submitted()[0])
		time.Sleep(time.Hour)
		if n := len(f.submitted()); n != 1 {
			t.Errorf("%d entries in an hour", n)
		}
		f.proposer.SetPublished(7)
		f.proposer.SetPublished(5) // it never moves back
		time.Sleep(200 * time.Millisecond)
		entries := f.submitted()
		if len(entries) != 2 || entries[1].decoded.Published != 7 ||
			len(entries[1].decoded.Commands) != 0 {
			t.Errorf("%d entries, the last one %+v", len(entries), entries[len(entries)-1].decoded)
		}
		_ = stop() // why it ends is shown elsewhere
	})
}

// While something in the state waits for cluster time, an idle leader submits an entry without
// commands once a second, which moves cluster time.
func TestTimePassesWhileAnythingWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := start(t, testConfig())
		f.mu.Lock()
		f.status.TimeIsPending = true
		f.mu.Unlock()
		f.propose(1)
		f.commit(f.submitted()[0])
		time.Sleep(1100 * time.Millisecond)
		if n := len(f.submitted()); n != 2 {
			t.Errorf("%d entries after a second", n)
		}
		_ = stop() // why it ends is shown elsewhere
	})
}

// The delivery watermark may move while an entry is stamped, and again after it. The first move is
// in the entry. The second is logged although no command follows.
func TestMarkThatMovesAroundAnEntryGoesOutInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fakeRaft
		moved := false
		f, stop := startWith(t, testConfig(), func() int64 {
			if !moved {
				moved = true
				f.proposer.SetPublished(5)
			}
			return time.Now().UnixMilli()
		})
		f.propose(1)
		f.commit(f.submitted()[0])
		time.Sleep(time.Second)
		f.proposer.SetPublished(6)
		time.Sleep(time.Second)
		entries := f.submitted()
		if mark := entries[len(entries)-1].decoded.Published; len(entries) != 2 || mark != 6 {
			t.Errorf("%d entries, the last with the mark %d", len(entries), mark)
		}
		if err := stop(); !errors.Is(err, errStopped) {
			t.Errorf("ended with %v", err)
		}
	})
}

// A state machine that has halted, and one that skips an entry, end the leadership's proposals,
// each with its own reason.
func TestEntryWithoutAnOutcomeEndsProposalsWithItsReason(t *testing.T) {
	halted := errors.New("halted")
	for name, want := range map[string]error{
		"the state machine has halted": halted,
		"it skipped the entry":         ErrSkipped,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, stop := start(t, testConfig())
				f.proposer.Add(fsm.Command{Kind: fsm.KindSet}, "tag")
				f.proposer.Flush()
				e := f.submitted()[0]
				if want == halted {
					e.halted = halted
				}
				e.outcome.Skipped = true
				close(e.done)
				synctest.Wait()
				if err := stop(); !errors.Is(err, want) {
					t.Errorf("the reason is %v", err)
				}
				if failed := f.failedTags(); len(failed) != 1 {
					t.Errorf("failed: %v", failed)
				}
			})
		})
	}
}

// Each entry carries how long ago the newest horizon was. The age of the horizon in the state is
// measured by cluster time.
func TestEntriesCarryTheHorizon(t *testing.T) {
	now, status := time.Second, fsm.Status{LeaderStartTime: 5000, Horizon: 4000}
	p := New(testConfig(), Environment{
		Monotonic: func() time.Duration { return now }, Status: func() fsm.Status { return status },
		StorageLow: func() bool { return false }, ClusterClock: func() int64 { return 1 },
		Proposed: func(int, int) {},
		Submit: func(data []byte) raft.ApplyFuture {
			entry, err := fsm.DecodeEntry(data)
			if err != nil {
				t.Fatal(err)
			}
			if entry.HorizonAge != 2500 {
				t.Errorf("an age of %d, want 2500", entry.HorizonAge)
			}
			return nil
		},
	}, Leadership{Term: 1, StartMonotonic: time.Second, StartClusterTime: 5000})
	now += 10 * time.Second
	if age := p.HorizonAge(); age != 11*time.Second {
		t.Errorf("the horizon in the state is %v old", age)
	}
	p.SetHorizon(500 * time.Millisecond)
	p.SetHorizon(time.Second) // an older one
	now += 2 * time.Second
	if _, err := p.propose(nil, nil); err != nil {
		t.Fatal(err)
	}
}
