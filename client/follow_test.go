package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/glob"
	"holdfast/internal/tcpproxy"
	"holdfast/internal/testwait"
)

// collector collects what Follower.Changes returns.
type collector struct {
	mu   sync.Mutex
	list []string
}

// collect collects changes until the test ends.
func collect(t *testing.T, f *client.Follower) *collector {
	c := &collector{}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for e := range f.Changes(ctx) {
			c.add(e)
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
	})
	return c
}

func (c *collector) add(e client.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := fmt.Sprintf("%s=%s", e.Key, e.Value)
	if e.Kind == client.EventDeleted {
		text = e.Key + " deleted"
	}
	c.list = append(c.list, text)
}

func (c *collector) all() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.list, " ")
}

func contents(f *client.Follower) string {
	var all []string
	for key, item := range f.All() {
		all = append(all, fmt.Sprintf("%s=%s", key, item.Value))
	}
	return strings.Join(all, " ")
}

// unique returns a key prefix that no other test uses, nor another run of the same test with
// -count: all tests share one store.
func unique(name string) string { return fmt.Sprintf("%s-%d/", name, time.Now().UnixNano()) }

func set(t *testing.T, c *client.Client, key, value string) {
	t.Helper()
	if _, err := c.Set(t.Context(), key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

// A Follower's copy is complete when Follow returns. After a lost connection the Follower reads all
// keys again, and reports those that were deleted meanwhile.
func TestFollowerOutlivesItsConnection(t *testing.T) {
	other, ctx, prefix := connect(t), t.Context(), unique("followed")
	set(t, other, prefix+"kept", "1")
	set(t, other, prefix+"gone", "1")
	p := startProxy(t)
	c := connect(t, func(config *client.Config) { config.Addresses = []string{p.Address()} })
	f, err := c.Follow(ctx, prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := contents(f), fmt.Sprintf("%[1]sgone=1 %[1]skept=1", prefix); got != want ||
		!f.Synced() {
		t.Errorf("the first copy is %q, want %q; synced %v", got, want, f.Synced())
	}
	seen := collect(t, f)
	testwait.Until(t, "the first keys are reported",
		func() bool { return seen.all() == fmt.Sprintf("%[1]sgone=1 %[1]skept=1", prefix) })
	set(t, other, prefix+"kept", "2")
	set(t, other, prefix+"another", "1")
	testwait.Until(t, "both changes arrive",
		func() bool {
			return strings.HasSuffix(seen.all(),
				fmt.Sprintf("%[1]skept=2 %[1]sanother=1", prefix))
		})
	for range 3 {
		p.Set(tcpproxy.Refusing) // and refuse new connections
		testwait.Until(t, "it knows that it may lack changes", func() bool { return !f.Synced() })
		set(t, other, prefix+"new", fmt.Sprint(time.Now()))
		if _, err := other.Del(ctx, prefix+"gone"); err != nil &&
			!errors.Is(err, client.ErrNotFound) {
			t.Fatal(err)
		}
		p.Set(tcpproxy.Open)
		testwait.Until(t, "it is up to date again", f.Synced)
		value, _, err := other.Get(ctx, prefix+"new")
		if got, want := contents(f),
			fmt.Sprintf("%[1]sanother=1 %[1]skept=2 %[1]snew=%[2]s", prefix, value); err != nil ||
			got != want {
			t.Errorf("after the connection came back: %q, want %q; %v", got, want, err)
		}
	}
	if got := seen.all(); !strings.Contains(got, prefix+"gone deleted") {
		t.Errorf("reported: %q", got)
	}
	if err := f.Close(ctx); err != nil || f.Synced() || f.Err() != nil {
		t.Errorf("closed: %v, synced %v, %v", err, f.Synced(), f.Err())
	}
	if watches(c.ID()) {
		t.Error("the store still has the watch")
	}
}

// A client finds its own writes in a copy that is synced.
func TestSyncedFollowerHasItsClientsWrites(t *testing.T) {
	c, prefix := connect(t), unique("own")
	f, err := c.Follow(t.Context(), prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		set(t, c, prefix+"k", fmt.Sprint(i))
		testwait.Until(t, "it is synced", f.Synced)
		if item, _ := f.Get(prefix + "k"); string(item.Value) != fmt.Sprint(i) {
			t.Fatalf("after SET %d the copy has %q, and says that it is synced", i, item.Value)
		}
	}
}

// A slow receiver of Changes loses changes, but never the last one of a key, and the copy does not
// wait for the receiver. The Follower also falls behind its own watch here, which has a WatchBuffer
// of 1. It gets a gap, and reads all keys again.
func TestSlowReceiverGetsTheLastChange(t *testing.T) {
	c, prefix := connect(t, func(config *client.Config) { config.WatchBuffer = 1 }), unique("slow")
	// ends Changes if a change is missing
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	set(t, c, prefix+"gone", "1")
	set(t, c, prefix+"kept", "first")
	f, err := c.Follow(ctx, prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	received := &collector{}
	events := 0
	for e := range f.Changes(ctx) {
		received.add(e)
		if events++; events == 2 {
			release := f.Stall()
			for i := range 100 {
				set(t, c, prefix+"kept", fmt.Sprint(i))
			}
			set(t, c, prefix+"new", "1")
			if _, err := c.Del(ctx, prefix+"gone"); err != nil {
				t.Fatal(err)
			}
			release()
			want := fmt.Sprintf("%[1]skept=99 %[1]snew=1", prefix)
			testwait.Until(t, "the copy is complete",
				func() bool { return f.Synced() && contents(f) == want })
		}
		if events == 5 {
			break
		}
	}
	slices.Sort(received.list[min(2, events):]) // the order of changes in a gap is not known
	if got, want := received.all(),
		fmt.Sprintf("%[1]sgone=1 %[1]skept=first %[1]sgone deleted %[1]skept=99 %[1]snew=1",
			prefix); got != want {
		t.Errorf("it got %q, want %q", got, want)
	}
}

// A Follower finds a change without a notification in its next pass, which reads all keys. The next
// renewal of its watch restores a watch that an operator ended.
func TestFollowerFindsWhatNobodyNotified(t *testing.T) {
	c := connect(t, func(config *client.Config) {
		config.FollowRefresh, config.WatchRenewal = 200*time.Millisecond, 100*time.Millisecond
	})
	other, prefix := connect(t), unique("refreshed")
	f, err := c.Follow(t.Context(), prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	endWatches(t, c.ID())
	set(t, other, prefix+"k", "v")
	testwait.Until(t, "the change is found",
		func() bool { _, ok := f.Get(prefix + "k"); return ok })
	testwait.Until(t, "the store has the watch again", func() bool { return watches(c.ID()) })
}

// Close with a context that has ended returns an error, and the watch ends in the store a little
// later.
func TestFollowerThatIsClosedLeavesNoWatch(t *testing.T) {
	c, prefix := connect(t), unique("closed")
	f, err := c.Follow(t.Context(), prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Close(ended); !errors.Is(err, client.ErrNotExecuted) {
		t.Errorf("%v", err)
	}
	testwait.Until(t, "the store has no watch of the client",
		func() bool { return !watches(c.ID()) })
}

// Keys of more than 4096 bytes are not in the copy: no watch of a pattern reports their changes.
func TestFollowerLeavesOutLongKeys(t *testing.T) {
	c, prefix := connect(t), unique("long")
	set(t, c, prefix+strings.Repeat("k", 4096), "v")
	set(t, c, prefix+"short", "v")
	f, err := c.Follow(t.Context(), prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(f); got != prefix+"short=v" {
		t.Errorf("%.200q", got)
	}
}

// The context of Follow bounds the time until the copy is complete. A Follow that gave up leaves no
// watch in the store.
func TestFollowEndsWithItsContext(t *testing.T) {
	c, prefix := connect(t), unique("context")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Follow(ended, prefix+"*"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for i := range 50 {
		short, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		f, err := c.Follow(short, fmt.Sprintf("%s%d-*", prefix, i))
		if err == nil {
			_ = f.Close(t.Context()) // an error means that the watch ends a little later
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
	}
	testwait.Until(t, "the store has no watch of the client",
		func() bool { return !watches(c.ID()) })
	if _, err := c.Follow(t.Context(), "["); !errors.Is(err, client.ErrNotExecuted) {
		t.Errorf("a malformed pattern: %v", err)
	}
}

func TestFollowerEndsWithItsClient(t *testing.T) {
	c, prefix := connect(t), unique("ended")
	f, err := c.Follow(t.Context(), prefix+"*")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	<-f.Done()
	for e := range f.Changes(t.Context()) {
		t.Errorf("%+v", e)
	}
	if err := f.Err(); !errors.Is(err, client.ErrClosed) || f.Synced() {
		t.Errorf("%v, synced %v", err, f.Synced())
	}
	if _, err := c.Follow(t.Context(), prefix+"*"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("on a closed client: %v", err)
	}
}

// A key that is too long for watches of patterns is in no copy, also if the Follower's client has a
// watch of the key itself.
func TestLongKeyIsInNoCopy(t *testing.T) {
	c := connect(t)
	long := "long key/" + strings.Repeat("x", glob.MaxWatchedKey)
	f, err := c.Follow(t.Context(), "long key/*")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(t.Context())
	w, err := c.Watch(t.Context(), long)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(t.Context())
	if _, err := c.Set(t.Context(), long, []byte("v")); err != nil {
		t.Fatal(err)
	}
	<-w.Events()
	testwait.Until(t, "the copy is synced", f.Synced)
	if _, found := f.Get(long); found {
		t.Error("the copy has it")
	}
}
