package client

import "slices"

// followed is the local copy of a Follower. It has no connection: the Follower passes notifications
// and results of reads to its methods, which report whether the copy changed. followed is not safe
// for concurrent use.
//
// Notifications come in the order of the changes. Some may come again, and some are lost in a gap
// (EventGap). A pass reads every key at least once. Reads and notifications may overtake each
// other.
type followed struct {
	items map[string]Item
	// newest is the highest version in a notification since newest was last reset. Three things
	// reset it: a pass that begins after a gap, a deletion without a notification, and a read of an
	// older version. Versions grow across all keys, and the version of a deletion is that of the
	// deleted value. So a SET whose version is not above newest is a repetition. It is ignored,
	// also if its first notification was lost in a gap: the pass after the gap reads the key.
	newest Version
	pass   *passState // nil if none is under way
}

// passState is what is known of keys since a pass began.
type passState struct {
	afterGap bool
	// incomplete says that the copy may lack a change that was notified in this pass: its version
	// is below that of the copy's value, which may be from before the gap and of another cluster.
	// Another pass finds it.
	incomplete bool
	// keys that a notified SET or a read has put into the copy, or confirmed there
	seen    map[string]struct{}
	deleted map[string]Version // by key: the highest version whose deletion was notified
}

func newFollowed() followed { return followed{items: make(map[string]Item)} }

// beginPass begins a pass. The copy has every notification that was received before. After a gap
// the client may be connected to another cluster, whose versions may be lower, so newest is reset.
// A repeated SET may then restore a deleted key for a moment: the repeated notification of the
// deletion follows.
func (f *followed) beginPass(afterGap bool) {
	if afterGap {
		f.newest = Version{}
	}
	f.pass = &passState{
		afterGap: afterGap, seen: make(map[string]struct{}),
		deleted: make(map[string]Version),
	}
}

// endPass ends a pass. The pass has read every key that existed from its begin to its end. endPass
// deletes the keys that were neither read nor notified in this pass, and returns them in the order
// of their bytes.
func (f *followed) endPass() (deleted []string) {
	for key := range f.items {
		if _, seen := f.pass.seen[key]; !seen {
			deleted = append(deleted, key)
		}
	}
	slices.Sort(deleted)
	for _, key := range deleted {
		f.deleteUnseen(key)
	}
	f.pass = nil
	return deleted
}

// deleteUnseen deletes from the copy a key whose deletion came without a notification. It resets
// newest: the client may be connected to another cluster, which has lower versions.
func (f *followed) deleteUnseen(key string) {
	delete(f.items, key)
	f.newest = Version{}
}

// applyNotification applies a notification to the copy, and reports whether the copy changed.
func (f *followed) applyNotification(event Event) bool {
	item, known := f.items[event.Key]
	fresh := f.newest.Before(event.Version)
	if fresh {
		f.newest = event.Version
	}
	if event.Kind == EventDeleted {
		if f.pass != nil && f.pass.deleted[event.Key].Before(event.Version) {
			f.pass.deleted[event.Key] = event.Version
		}
		if !known || event.Version.Before(item.Version) {
			return false
		}
		delete(f.items, event.Key)
		return true
	}
	if !fresh {
		return false
	}
	if known && !item.Version.Before(event.Version) { // the copy has this value or a newer one
		if item.Version != event.Version && f.mayBeForeign(event.Key) {
			f.pass.incomplete = true
		}
		return false
	}
	f.markSeen(event.Key)
	f.items[event.Key] = Item{event.Value, event.Version}
	return true
}

// applyRead applies the result of a read in this pass to the copy, and reports whether the copy
// changed. absent says that the key had no value.
func (f *followed) applyRead(key string, found Item, absent bool) bool {
	item, known := f.items[key]
	_, seen := f.pass.seen[key]
	switch {
	case absent:
		if seen || !known { // if the key was seen, the notification of its deletion will follow
			return false
		}
		f.deleteUnseen(key)
		return true
	case !f.pass.deleted[key].Before(found.Version), seen && !item.Version.Before(found.Version):
		// this version or a newer one is known already
		return false
	}
	f.markSeen(key)
	if known && item.Version == found.Version {
		return false
	}
	if known && found.Version.Before(item.Version) {
		// a backup was restored, or the client is connected to another cluster
		f.newest = Version{}
	}
	f.items[key] = found
	return true
}

// mayBeForeign reports whether the copy's value of a key may be of another cluster than the one to
// which the client is connected now: it is from before a gap.
func (f *followed) mayBeForeign(key string) bool {
	if f.pass == nil || !f.pass.afterGap {
		return false
	}
	_, seen := f.pass.seen[key]
	return !seen
}

func (f *followed) markSeen(key string) {
	if f.pass != nil {
		f.pass.seen[key] = struct{}{}
	}
}
