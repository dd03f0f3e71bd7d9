package readindex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/fsm"
)

// fakeCluster is what a Reader uses of its node: the state, the confirmations of the leadership,
// and the receiver of the results.
type fakeCluster struct {
	machine *fsm.Machine

	mu       sync.Mutex
	index    uint64 // applied index of the state
	changed  chan struct{}
	confirms chan error
	answered []any
	failed   []any
}

// apply moves the state to an index.
func (f *fakeCluster) apply(index uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index = index
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeCluster) tags(of *[]any) []any {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(*of)
}

var errEnded = errors.New("the leadership ended")

// start runs a Reader with the commit index 5 and the applied index 4. It ends with the context, or
// when the test calls stop.
func start(t *testing.T) (f *fakeCluster, r *Reader, stop func() error) {
	t.Helper()
	f = &fakeCluster{
		machine: fsm.New(), index: 4, changed: make(chan struct{}),
		confirms: make(chan error, 10),
	}
	r = New(Environment{
		CommitIndex: func() uint64 { return 5 },
		Confirm: func(ctx context.Context) error {
			select {
			case err := <-f.confirms:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
		LastCommand: func(commit, applied uint64) uint64 { return max(commit, applied) },
		State: func() (fsm.Status, <-chan struct{}) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return fsm.Status{Index: f.index}, f.changed
		},
		View: func(view func(*fsm.Machine)) { view(f.machine) },
		Done: func(tag any, _ uint64, _ fsm.Result) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.answered = append(f.answered, tag)
		},
		Failed: func(tag any) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failed = append(f.failed, tag)
		},
		ObserveReadIndex: func(time.Duration) {},
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return f, r, func() error {
		cancel(errEnded)
		return <-ended
	}
}

func read(t *testing.T, r *Reader, tag any) {
	t.Helper()
	if !r.Add(&fsm.Command{Kind: fsm.KindGet, Key: []byte("k")}, tag) {
		t.Error("not taken up")
	}
	r.Flush()
}

// A read is answered when the leadership is confirmed, and the state holds everything that was
// committed when the read came.
func TestReadIsAnsweredBehindTheReadIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r, stop := start(t)
		read(t, r, "a")
		if got := f.tags(&f.answered); len(got) != 0 {
			t.Errorf("answered %v before the leadership is confirmed", got)
		}
		f.confirms <- nil
		if got := f.tags(&f.answered); len(got) != 0 {
			t.Errorf("answered %v by a state that is behind", got)
		}
		f.apply(5)
		if got := f.tags(&f.answered); !slices.Equal(got, []any{"a"}) {
			t.Errorf("answered %v", got)
		}
		if err := stop(); !errors.Is(err, errEnded) {
			t.Errorf("ended with %v", err)
		}
	})
}

// A confirmation of the leadership counts only for the reads that were queued before it began.
// Later reads wait for the next one.
func TestReadsNeedAConfirmationOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r, stop := start(t)
		f.apply(5)
		read(t, r, "a")
		synctest.Wait()
		read(t, r, "b")
		f.confirms <- nil
		if got := f.tags(&f.answered); !slices.Equal(got, []any{"a"}) {
			t.Errorf("answered %v by the first confirmation", got)
		}
		f.confirms <- nil
		if got := f.tags(&f.answered); !slices.Equal(got, []any{"a", "b"}) {
			t.Errorf("answered %v", got)
		}
		_ = stop() // why it ends is shown elsewhere
	})
}

// With OneByOne the state is locked for each read anew, so that entries can be applied between
// reads that take long.
func TestEachReadLocksTheState(t *testing.T) {
	for each, want := range map[bool]int{true: 3, false: 1} {
		t.Run(fmt.Sprintf("each %v", each), func(t *testing.T) {
			views, answered := 0, 0
			r := New(Environment{
				OneByOne: each, View: func(view func(*fsm.Machine)) { views++; view(fsm.New()) },
				Done: func(any, uint64, fsm.Result) { answered++ },
			})
			command := &fsm.Command{Kind: fsm.KindScan, Key: []byte("*")}
			left := r.answer(t.Context(),
				[]pendingRead{{command: command}, {command: command}, {command: command}})
			if len(left) != 0 || views != want || answered != 3 {
				t.Errorf("%d answers while the state was locked %d times, want %d", answered, views,
					want)
			}
		})
	}
}

// Reads that take long do not hold up the end of a leadership: what is not answered by then is
// given back.
func TestReadsEndWithTheLeadership(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := New(Environment{
		OneByOne: true, View: func(view func(*fsm.Machine)) { view(fsm.New()) },
		Done: func(any, uint64, fsm.Result) { cancel() },
	})
	command := &fsm.Command{Kind: fsm.KindScan, Key: []byte("*")}
	left := r.answer(ctx, []pendingRead{{command, 1}, {command, 2}, {command, 3}})
	if len(left) != 2 || left[0].tag != 2 {
		t.Errorf("%d are left", len(left))
	}
}

// Done or Failed is called exactly once for each read, also for one that arrives while others are
// answered and the leadership ends.
func TestEachReadComesBackOnceAtTheEnd(t *testing.T) {
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(map[any]int)
		command := &fsm.Command{Kind: fsm.KindScan, Key: []byte("*")}
		var r *Reader
		r = New(Environment{
			OneByOne: true, CommitIndex: func() uint64 { return 0 },
			Confirm:          func(context.Context) error { return nil },
			LastCommand:      func(uint64, uint64) uint64 { return 0 },
			State:            func() (fsm.Status, <-chan struct{}) { return fsm.Status{}, nil },
			ObserveReadIndex: func(time.Duration) {},
			View:             func(view func(*fsm.Machine)) { view(fsm.New()) },
			Failed:           func(tag any) { returned[tag]++ },
			Done: func(tag any, _ uint64, _ fsm.Result) {
				if returned[tag]++; tag == 0 {
					r.Add(command, 10)
					r.Flush()
					cancel()
				}
			},
		})
		for tag := range 10 {
			r.Add(command, tag)
		}
		r.Flush()
		if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("ended with %v", err)
		}
		for tag := range 11 {
			if returned[tag] != 1 {
				t.Fatalf("read %d came back %d times", tag, returned[tag])
			}
		}
	}
}

// If the leadership is not confirmed, Failed is called for each read that is not answered, in
// order. Then the Reader accepts no more reads.
func TestUnconfirmedReadsAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r, stop := start(t)
		read(t, r, "a")
		synctest.Wait()
		read(t, r, "b")
		f.confirms <- errEnded
		if got := f.tags(&f.failed); !slices.Equal(got, []any{"a", "b"}) {
			t.Errorf("given back: %v", got)
		}
		if r.Add(&fsm.Command{Kind: fsm.KindGet}, nil) {
			t.Error("takes reads after its end")
		}
		if err := stop(); !errors.Is(err, errEnded) {
			t.Errorf("ended with %v", err)
		}
	})
}
