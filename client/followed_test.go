package client

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// followedStore is a model of a store and of the notifications that a Follower gets from it. They
// come in order. Some come again. Those of a gap never come.
type followedStore struct {
	t             *rapid.T
	clock         int64
	items         map[string]Item
	notifications []Event // all that were ever sent
	delivered     int     // number of notifications that were delivered, or lost in a gap
}

func (s *followedStore) change() {
	key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(s.t, "key")
	if item, there := s.items[key]; there && rapid.Bool().Draw(s.t, "delete") {
		delete(s.items, key)
		s.notifications = append(s.notifications,
			Event{Kind: EventDeleted, Key: key, Version: item.Version})
		return
	}
	s.clock++
	item := Item{fmt.Append(nil, s.clock), Version{Wall: s.clock, NodeID: "StateStore"}}
	s.items[key] = item
	s.notifications = append(s.notifications,
		Event{Kind: EventSet, Key: key, Value: item.Value, Version: item.Version})
}

// Notifications and reads may overtake each other. The copy equals the store when two things have
// happened: a pass (a read of all keys) that began after the latest gap has ended, and all later
// notifications have come.
func TestFollowedCopyEqualsTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &followedStore{t: t, items: make(map[string]Item)}
		f := newFollowed()
		deliver := func(number int) { f.applyNotification(s.notifications[number]) }
		deliverNext := func() {
			if s.delivered < len(s.notifications) {
				deliver(s.delivered)
				s.delivered++
			}
		}
		type read struct {
			key  string
			item Item
			gone bool
		}
		for range rapid.IntRange(1, 4).Draw(t, "gaps") {
			for range rapid.IntRange(0, 10).Draw(t, "changes before the gap") {
				s.change()
				if rapid.Bool().Draw(t, "deliver") {
					deliverNext()
				}
			}
			s.delivered = len(s.notifications) // the others never come
			f.beginPass(true)
			// has every key that exists during the whole pass
			unread := slices.Sorted(maps.Keys(s.items))
			var underWay []read
			for len(unread)+len(underWay) > 0 {
				switch rapid.IntRange(0, 4).Draw(t, "step") {
				case 0:
					s.change()
				case 1:
					deliverNext()
				case 2: // a new leader repeats the latest notifications
					for number := rapid.IntRange(0, s.delivered).Draw(t,
						"repeated from"); number < s.delivered; number++ {
						deliver(number)
					}
				case 3: // the store answers a read
					if len(unread) > 0 {
						item, there := s.items[unread[0]]
						underWay = append(underWay, read{unread[0], item, !there})
						unread = unread[1:]
					}
				default: // the answer to a read arrives
					if len(underWay) > 0 {
						at := rapid.IntRange(0, len(underWay)-1).Draw(t, "which")
						r := underWay[at]
						underWay = slices.Delete(underWay, at, at+1)
						f.applyRead(r.key, r.item, r.gone)
					}
				}
			}
			f.endPass()
		}
		for s.delivered < len(s.notifications) {
			deliverNext()
		}
		want := make(map[string]string)
		for key, item := range s.items {
			want[key] = string(item.Value)
		}
		got := make(map[string]string)
		for key, item := range f.items {
			got[key] = string(item.Value)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("the copy is %v, the store has %v", got, want)
		}
	})
}

// A restore puts older values back without notifications. The copy takes the value that a pass
// reads, even if its version is lower, and then later changes.
func TestFollowedCopyTakesWhatAPassReads(t *testing.T) {
	version := func(n int64) Version { return Version{Wall: n, NodeID: "StateStore"} }
	set := func(value string, n int64) Event {
		return Event{Kind: EventSet, Key: "k", Value: []byte(value), Version: version(n)}
	}
	f := newFollowed()
	f.applyNotification(set("new", 9))
	f.beginPass(true)
	if !f.applyRead("k", Item{[]byte("old"), version(3)}, false) ||
		string(f.items["k"].Value) != "old" {
		t.Errorf("after the pass: %q", f.items["k"].Value)
	}
	if deleted := f.endPass(); len(deleted) != 0 {
		t.Errorf("deleted: %q", deleted)
	}
	if !f.applyNotification(set("of another cluster, whose clock is behind", 5)) ||
		f.items["k"].Version != version(5) {
		t.Errorf("a change after the pass: %v", f.items["k"].Version)
	}
	f.beginPass(true)
	if f.endPass(); len(f.items) != 0 {
		t.Error("a key of which a pass heard nothing is still there")
	}
}

// After a gap, a notification with a lower version than the copy's may come from another cluster,
// or be an old one that the same cluster repeats. It does not change the copy. Another pass shows
// which it was.
func TestLowerVersionAfterAGapNeedsAnotherPass(t *testing.T) {
	version := func(n int64) Version { return Version{Wall: n, NodeID: "StateStore"} }
	set := func(n int64) Event { return Event{Kind: EventSet, Key: "k", Version: version(n)} }
	for name, test := range map[string]struct {
		afterGap   bool
		notified   int64 // version in a notification during the pass; the copy has version 9 then
		read       int64 // version that the pass reads; 0: the key does not exist
		incomplete bool
		want       int64 // the copy's version after the pass; 0: the copy does not have the key
	}{
		"another cluster, read before the change": {
			afterGap: true, notified: 6, read: 5,
			incomplete: true, want: 5,
		},
		"another cluster, read after the change": {
			afterGap: true, notified: 6, read: 6,
			incomplete: true, want: 6,
		},
		"a repetition of an older change": {
			afterGap: true, notified: 6, read: 9,
			incomplete: true, want: 9,
		},
		"a repetition of the latest change": {afterGap: true, notified: 9, read: 9, want: 9},
		"a repetition after a deletion":     {afterGap: true, notified: 9, want: 0},
		"a refresh":                         {notified: 6, read: 9, want: 9},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFollowed()
			f.applyNotification(set(9))
			f.beginPass(test.afterGap)
			if f.applyNotification(set(test.notified)) {
				t.Error("the notification changed the copy")
			}
			if test.read > 0 {
				f.applyRead("k", Item{Version: version(test.read)}, false)
			}
			if f.pass.incomplete != test.incomplete {
				t.Errorf("another pass is needed: %t", f.pass.incomplete)
			}
			if f.endPass(); f.items["k"].Version.Wall != test.want {
				t.Errorf("the copy has version %d, want %d", f.items["k"].Version.Wall, test.want)
			}
		})
	}
}

// A new leader may repeat notifications. None of them brings back what was deleted since.
func TestRepeatedNotificationsBringNothingBack(t *testing.T) {
	version := Version{Wall: 1, NodeID: "StateStore"}
	set, deleted := Event{Kind: EventSet, Key: "k", Version: version},
		Event{Kind: EventDeleted, Key: "k", Version: version}
	f := newFollowed()
	if !f.applyNotification(set) || !f.applyNotification(deleted) {
		t.Error("the first of each is news")
	}
	if f.applyNotification(set) || f.applyNotification(deleted) || len(f.items) != 0 {
		t.Errorf("a repeated one is news: %v", f.items)
	}
	late := newFollowed() // of a Follower that began after the notification of the SET
	late.applyNotification(deleted)
	if late.applyNotification(set) {
		t.Error("a SET that comes after its deletion is news")
	}
}

// After a gap the client may be connected to another cluster, whose versions are lower. An empty
// copy follows that cluster from the first pass on.
func TestEmptyCopyFollowsAnotherCluster(t *testing.T) {
	version := func(number int64) Version { return Version{Wall: number, NodeID: "StateStore"} }
	f := newFollowed()
	f.beginPass(true)
	f.endPass()
	f.applyNotification(Event{Kind: EventSet, Key: "a", Version: version(1000)})
	f.applyNotification(Event{Kind: EventDeleted, Key: "a", Version: version(1000)})
	f.beginPass(true)
	f.applyRead("x", Item{Value: []byte("1"), Version: version(10)}, false)
	f.applyNotification(Event{Kind: EventSet, Key: "during the pass", Version: version(11)})
	f.endPass()
	f.applyNotification(Event{Kind: EventSet, Key: "x", Value: []byte("2"), Version: version(12)})
	if _, found := f.items["during the pass"]; !found || string(f.items["x"].Value) != "2" {
		t.Errorf("%q", f.items)
	}
}

// † A pass covers the gaps from before it began, and none that came meanwhile: until the next pass
// the copy is not in sync.
func TestGapDuringAPassIsNotCovered(t *testing.T) {
	current := &session{}
	f := &Follower{
		client:  &Client{session: current},
		watcher: &Watcher{confirmedIn: current, gaps: 2, queued: 2}, copy: newFollowed(),
		first: make(chan struct{}),
	}
	f.watcher.client = f.client
	f.processed, f.gaps, f.covered = 2, 2, 0
	f.copy.beginPass(true)
	if !f.endPass(1) { // it began after the first gap
		t.Fatal("the pass is not complete")
	}
	if f.Synced() {
		t.Error("the copy counts as in sync, and nothing was read since the last gap")
	}
	f.copy.beginPass(true)
	if f.endPass(2); !f.Synced() {
		t.Error("the copy does not count as in sync")
	}
}
