package client

import (
	"maps"
	"slices"
)

// changes is what one call of Follower.Changes has still to return: a list of keys, each of which is in it once. So its size is bounded by the number of
// keys, however slow the receiver is. It is guarded by Follower.mu.
type changes struct {
	waiting  []string // keys that have changed, in the order of their first change
	queued   map[string]struct{}
	reported map[string]Version // what was returned of each key
	wake     chan struct{}      // has room for one
}

func (f *Follower) addChanges() *changes {
	own := &changes{queued: make(map[string]struct{}), reported: make(map[string]Version), wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(f.copy.items)) {
		own.add(key)
	}
	f.changes = append(f.changes, own)
	return own
}

func (f *Follower) removeChanges(own *changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = slices.DeleteFunc(f.changes, func(other *changes) bool { return other == own })
}

func (c *changes) add(key string) {
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

func (f *Follower) changedLocked(key string) {
	for _, c := range f.changes {
		c.add(key)
	}
}

// nextChange returns the next change, if one is waiting: what the copy has now of a key that has changed since it was returned last.
func (f *Follower) nextChange(own *changes) (event Event, waiting bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(own.waiting) > 0 {
		key := own.waiting[0]
		own.waiting = own.waiting[1:]
		delete(own.queued, key)
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
	return Event{}, false
}
