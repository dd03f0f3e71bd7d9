package client

import (
	"maps"
	"slices"
)

// changeQueue has the keys that one call of Follower.Changes must still return: the keys that the
// copy had when the call began, and each key that has changed since. A changed key is queued once.
// A key that was created and deleted before it was returned is left out. So the number of keys
// bounds the size, however slow the receiver is. Follower.mu guards it.
type changeQueue struct {
	// the sorted keys that the copy had when the call began; only that call uses them
	first []string
	// changed keys in the order of their first change; may have a key twice, and keys that are not
	// in queued any more
	waiting  []string
	queued   map[string]struct{} // changed keys that are still to be returned
	reported map[string]Version  // by key: the version that was returned last
	wake     chan struct{}       // says that a key was queued; has room for one
}

func (f *Follower) addChanges() *changeQueue {
	own := &changeQueue{
		queued: make(map[string]struct{}), reported: make(map[string]Version),
		wake: make(chan struct{}, 1),
	}
	f.mu.Lock()
	own.first = slices.Collect(maps.Keys(f.copy.items))
	f.changes = append(f.changes, own)
	f.mu.Unlock()
	slices.Sort(own.first) // without the lock: sorting many keys takes long
	return own
}

func (f *Follower) removeChanges(own *changeQueue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = slices.DeleteFunc(f.changes, func(other *changeQueue) bool { return other == own })
}

// changedLocked tells all change queues that a key of the copy has changed. Follower.mu must be
// held.
func (f *Follower) changedLocked(key string) {
	_, exists := f.copy.items[key]
	for _, c := range f.changes {
		c.add(key, exists)
	}
}

func (c *changeQueue) add(key string, exists bool) {
	if _, reported := c.reported[key]; !exists && !reported {
		delete(c.queued, key)
		c.compact()
		return
	}
	if _, queued := c.queued[key]; queued {
		return
	}
	c.queued[key] = struct{}{}
	c.waiting = append(c.waiting, key)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// compact removes from waiting the keys that are not in queued any more, when they are at least
// half of it.
func (c *changeQueue) compact() {
	const least = 1024
	if len(c.waiting) < least || len(c.waiting) < 2*len(c.queued) {
		return
	}
	kept := make(map[string]struct{}, len(c.queued))
	c.waiting = slices.DeleteFunc(c.waiting, func(key string) bool {
		_, queued := c.queued[key]
		_, twice := kept[key]
		kept[key] = struct{}{}
		return !queued || twice
	})
}

// next returns the next key, if there is one. The key may be unchanged since it was returned last:
// nextChange checks that.
func (c *changeQueue) next() (key string, found bool) {
	if len(c.first) > 0 {
		key, c.first = c.first[0], c.first[1:]
		return key, true
	}
	for len(c.waiting) > 0 {
		key, c.waiting = c.waiting[0], c.waiting[1:]
		if _, queued := c.queued[key]; queued {
			delete(c.queued, key)
			return key, true
		}
	}
	return "", false
}

// nextChange returns the next change, if one is waiting: what the copy has now of a key that has
// changed since it was returned last.
func (f *Follower) nextChange(own *changeQueue) (event Event, waiting bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		key, found := own.next()
		if !found {
			return Event{}, false
		}
		item, exists := f.copy.items[key]
		version, reported := own.reported[key]
		switch {
		case exists && !(reported && version == item.Version):
			own.reported[key] = item.Version
			return Event{Kind: EventSet, Key: key, Value: item.Value, Version: item.Version}, true
		case !exists && reported:
			delete(own.reported, key)
			return Event{Kind: EventDeleted, Key: key, Version: version}, true
		}
	}
}
