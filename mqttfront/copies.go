package mqttfront

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// A request may come several times, and what a node holds may have had its effect, or been shed, without the node having been told.
// What is here keeps copies from being executed again, or in another place.

// dedupLookup marks a request that has just come as a copy if the state has its outcome. A node that missed log entries learns that only from the state.
// A leader does not look.
func (f *Front) dedupLookup(r *pending.Request) (found dedupResult) {
	if r.Command.ID.IsZero() || r.Read {
		return dedupResult{done: true}
	}
	if f.leads() {
		return dedupResult{}
	}
	return dedupResult{done: true, published: f.look(r)}
}

// look notes whether a request has had its effect, and reports whether the reply is known to be published.
func (f *Front) look(r *pending.Request) (published bool) {
	f.store.View(func(m *fsm.Machine) {
		_, index, known := m.Remembered(r.Command.ID)
		if known {
			r.MarkCopy()
		}
		published = known && index <= m.Status().Published
	})
	return published
}

// recheckPending marks copies among all requests that a follower holds. It does so if the state may know outcomes that the node did not look up: of
// requests that it took in while it led, or after it installed a snapshot.
func (f *Front) recheckPending() {
	f.store.View(func(m *fsm.Machine) {
		f.mu.Lock()
		defer f.mu.Unlock()
		index := m.Status().Index
		if _, follows := f.role.(follower); !follows || !f.pending.NeedsLookup && index == f.applied {
			return
		}
		f.pending.NeedsLookup, f.applied = false, index
		for r := range f.pending.All() {
			if r.IsCopy() || r.Read || r.Command.ID.IsZero() {
				continue
			}
			if _, _, known := m.Remembered(r.Command.ID); known {
				r.MarkCopy()
			}
		}
	})
}

func (f *Front) leads() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, leads := f.role.(*leader)
	return leads
}

// wasShed reports whether a request was shed after this copy of it had come. f.mu is held.
func (f *Front) wasShed(r *pending.Request) bool {
	const imprecise = 10 * time.Millisecond // nodes tell each other whole milliseconds, and how long ago
	return f.pending.Hints.EndedAt(r.Command.ID, pending.EndShed).After(r.Arrived.Add(-imprecise))
}

// rejectRedelivery reports whether this node must not execute a request that the broker delivers again. The request expired here, or was shed, and
// later requests of its client may have been executed since. Or it has no identity and only the broker keeps requests: an earlier leader may
// have executed it, and no node could recognise it. f.mu is held.
func (f *Front) rejectRedelivery(r *pending.Request) bool {
	id := r.Command.ID
	switch {
	case r.Read:
		return false
	case id.IsZero():
		return !f.mode.followersHold()
	default:
		return !f.pending.Hints.EndedAt(id, pending.EndExpired).IsZero() || !f.mode.followersHold() && !f.pending.Hints.EndedAt(id, pending.EndShed).IsZero()
	}
}

// noteExpired notes that a request expired before this node executed it. f.mu is held.
func (f *Front) noteExpired(r *pending.Request) {
	if !r.Command.ID.IsZero() && !r.Read {
		f.pending.Hints.Ended(r.Command.ID, pending.EndExpired, 0, false, time.Now())
	}
}

// keepFirst removes the later one of two copies of a request, unless the store has it, and reports whether it removed r. f.mu is held.
func (f *Front) keepFirst(r *pending.Request) (dropped bool) {
	other := f.pending.KeepFirst(r)
	if other != nil {
		f.end(other)
	}
	return other == r
}
