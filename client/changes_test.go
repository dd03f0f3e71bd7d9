package client

import (
	"fmt"
	"slices"
	"testing"
)

// change sets a key of the Follower's copy to a version, or deletes it if the version is 0. The
// change queues get the change.
func (f *Follower) change(key string, version int64) {
	f.copy.items[key] = Item{fmt.Append(nil, version), Version{Wall: version, NodeID: "StateStore"}}
	if version == 0 {
		delete(f.copy.items, key)
	}
	f.changedLocked(key)
}

// pull returns all changes that wait in a change queue.
func (f *Follower) pull(own *changeQueue) (all []string) {
	for {
		event, waiting := f.nextChange(own)
		if !waiting {
			return all
		}
		text := fmt.Sprintf("%s=%s", event.Key, event.Value)
		if event.Kind == EventDeleted {
			text = event.Key + " deleted"
		}
		all = append(all, text)
	}
}

// Follower.Changes returns first the keys that the copy has, sorted, and then the last change of
// each key. A key that was created and deleted before the receiver asked is left out.
func TestChangesHaveTheLastOfEachKey(t *testing.T) {
	f := &Follower{copy: newFollowed()}
	f.change("b", 1)
	f.change("a", 2)
	own := f.addChanges()
	f.change("c", 3)
	f.change("b", 4)
	if got, want := f.pull(own), []string{"a=2", "b=4", "c=3"}; !slices.Equal(got, want) {
		t.Errorf("first %q, want %q", got, want)
	}
	f.change("c", 0)
	f.change("d", 5)
	f.change("d", 0)
	f.change("c", 6)
	f.change("a", 0)
	f.change("d", 7)
	if got, want := f.pull(own), []string{"c=6", "d=7", "a deleted"}; !slices.Equal(got, want) {
		t.Errorf("then %q, want %q", got, want)
	}
	if f.removeChanges(own); len(f.changes) != 0 {
		t.Error("it is still there")
	}
}

// Keys that are created and deleted while the receiver does not pull do not fill up the change
// queue.
func TestChangesAreBoundedByTheKeys(t *testing.T) {
	f := &Follower{copy: newFollowed()}
	own := f.addChanges()
	f.change("kept", 1)
	for i := range 100_000 {
		f.change(fmt.Sprint(i), 1)
		f.change(fmt.Sprint(i), 0)
	}
	if len(own.waiting) > 2048 || len(own.queued) != 1 {
		t.Errorf("%d keys wait, %d are queued", len(own.waiting), len(own.queued))
	}
	if got := f.pull(own); !slices.Equal(got, []string{"kept=1"}) {
		t.Errorf("%q", got)
	}
}

// Follow returns when a pass (one read of all keys) has ended that began after every gap. A gap
// counts also while its EventGap waits in the watcher's channel.
func TestFirstPassCoversEveryGap(t *testing.T) {
	f := &Follower{
		client: &Client{}, watcher: &Watcher{gaps: 1}, first: make(chan struct{}),
		copy: newFollowed(), covered: -1,
	}
	complete := func() bool {
		select {
		case <-f.first:
			return true
		default:
			return false
		}
	}
	f.copy.beginPass(true)
	if f.endPass(0); complete() {
		t.Error("a pass from before the gap")
	}
	f.copy.beginPass(true)
	if f.endPass(1); !complete() || f.covered != 1 {
		t.Error("a pass from after the gap")
	}
}
