package mqttfront

import (
	"time"

	"holdfast/fsm"
)

// A request may come several times, and what a node holds may have had its effect, or been shed, without the node having been told.
// What is here keeps copies from being executed again, or in another place.

// recognize notes whether a request that a follower is to hold is a copy of one that has had its effect, and reports whether the
// reply is known to be published: of what a node has missed for long, nothing else would tell. A leader need not know beforehand, and
// does not look.
func (f *Front) recognize(r *request) (looked, published bool) {
	if r.command.ID.IsZero() || r.read {
		return true, false
	}
	if f.leads() {
		return false, false
	}
	return true, f.look(r)
}

// look notes whether a request has had its effect, and reports whether the reply is known to be published.
func (f *Front) look(r *request) (published bool) {
	f.store.View(func(m *fsm.Machine) {
		_, index, known := m.Remembered(r.command.ID)
		r.effective = known
		published = known && index <= m.Status().Published
	})
	return published
}

// recognizeHeld does so for all that a follower holds, when there may be some that nobody has looked at: it has taken them in while it
// led, or has learnt of their outcomes by a snapshot only.
func (f *Front) recognizeHeld() {
	f.store.View(func(m *fsm.Machine) {
		f.mu.Lock()
		defer f.mu.Unlock()
		index := m.Status().Index
		if f.serving != nil || !f.unlooked && index == f.applied {
			return
		}
		f.unlooked, f.applied = false, index
		for element := f.held.Front(); element != nil; element = element.Next() {
			r := element.Value.(*request)
			if r.effective || r.read || r.command.ID.IsZero() {
				continue
			}
			_, _, r.effective = m.Remembered(r.command.ID)
		}
	})
}

func (f *Front) leads() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.serving != nil
}

// wasShed reports whether a request was shed after this copy of it had come. f.mu is held.
func (f *Front) wasShed(r *request) bool {
	const imprecise = 10 * time.Millisecond // nodes tell each other whole milliseconds, and how long ago
	return f.hints.endedAt(r.command.ID, endShed).After(r.arrived.Add(-imprecise))
}

// rejectRedelivery reports whether a request that the broker sends again is not to be executed. It had expired here before it was its turn,
// or was shed, and its client's later requests were not: it would come after them. Or, where nobody but the broker keeps requests,
// an earlier leader may have executed it, and nobody would know it again. f.mu is held.
func (f *Front) rejectRedelivery(r *request) bool {
	id := r.command.ID
	switch {
	case r.read:
		return false
	case id.IsZero():
		return f.config.FollowLeader
	default:
		return !f.hints.endedAt(id, endExpired).IsZero() || f.config.FollowLeader && !f.hints.endedAt(id, endShed).IsZero()
	}
}

// noteExpired notes that nobody waits for a request any more that was not executed. f.mu is held.
func (f *Front) noteExpired(r *request) {
	if !r.command.ID.IsZero() && !r.read {
		f.hints.ended(r.command.ID, endExpired, 0, false, time.Now())
	}
}

// isSpare lets go of a request of which another copy is held in an earlier place. A leader takes in every copy; of those that are
// left, the first keeps its place among its client's requests. f.mu is held.
func (f *Front) isSpare(r *request) bool {
	id := r.command.ID
	if id.IsZero() {
		return false
	}
	other := f.byID[id]
	switch {
	case other == r:
		return false
	case other == nil || r.sequence < other.sequence:
		f.byID[id] = r
		if other != nil {
			r.absorb(other)
		}
		if r.outcome != 0 {
			f.addKnown(r)
		}
		if other != nil && other.state == stateHeld { // else it comes here when the store gives it back
			f.end(other)
		}
		return false
	default:
		other.absorb(r)
		if other.outcome != 0 {
			f.addKnown(other)
		}
		f.end(r)
		return true
	}
}
