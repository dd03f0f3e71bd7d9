package mqttfront

import (
	"time"

	"holdfast/fsm"
)

const (
	// answeredMemory is how long it is remembered that a request was answered when the request itself has not come yet.
	answeredMemory = 10 * time.Second
	// endedMemory is how long it is remembered that a request was shed, or expired.
	endedMemory = 10 * time.Minute
	// maxHints bounds how many are remembered of each; beyond it the oldest are forgotten. A request that was answered is then held until it
	// expires, and one that ended without an effect may be executed from another node's copy.
	maxHints = 1 << 17
)

// hints says, of requests that the node does not hold, how each of them ended last. It has no lock and no clock.
type hints struct {
	byID map[fsm.RequestID]hint
	// order has a queue of notes for what is remembered for a short time, and one for what is remembered for long. Notes that were replaced
	// are still in it.
	order [2][]hintNote
}

type hint struct {
	end      requestEnd
	index    uint64 // of the entry in which it ended last; 0 for what was answered outside of the log
	arrivals int    // how many copies are expected within answeredMemory that ended before they arrived
	when     time.Time
}

type hintNote struct {
	id   fsm.RequestID
	when time.Time
}

// requestEnd is how a request ended.
type requestEnd uint8

const (
	endAnswered requestEnd = iota // its outcome is in the log, or the leader answered it outside of the log
	endShed                       // the log says that there was no room to remember even a refusal: it had no effect
	endExpired                    // nobody waited for it any more, and it was not executed here
)

// queue returns the index in hints.order of the notes of such an end.
func (e requestEnd) queue() int {
	if e == endAnswered {
		return 0
	}
	return 1
}

// ended notes how a request ended: in the log, at an index, or outside of the log, at 0. early says that a copy of it is expected.
func (h *hints) ended(id fsm.RequestID, end requestEnd, index uint64, early bool, now time.Time) {
	if h.byID == nil {
		h.byID = make(map[fsm.RequestID]hint)
	}
	known := h.byID[id]
	if now.Sub(known.when) > answeredMemory {
		known = hint{}
	}
	known.end, known.index, known.when = end, max(known.index, index), now
	if early {
		known.arrivals++
	}
	h.byID[id] = known
	h.order[end.queue()] = append(h.order[end.queue()], hintNote{id, now})
	h.forget(now)
}

// answered notes that a copy is expected that the leader answered outside of the log, unless the request was shed or has expired: then it was not
// executed, which says more.
func (h *hints) answered(id fsm.RequestID, now time.Time) {
	if known, ok := h.byID[id]; !ok || known.end == endAnswered {
		h.ended(id, endAnswered, 0, true, now)
	}
}

// arrived returns the index at which a request ended before this copy of it arrived, if it did. Each end is for one arrival: a copy that a client
// sends later is a request of its own.
func (h *hints) arrived(id fsm.RequestID, now time.Time) (index uint64, early bool) {
	known, ok := h.byID[id]
	if !ok || known.arrivals == 0 || now.Sub(known.when) > answeredMemory {
		return 0, false
	}
	if known.arrivals--; known.arrivals == 0 && known.end == endAnswered {
		delete(h.byID, id)
	} else {
		h.byID[id] = known
	}
	return known.index, true
}

// endedAt returns when a request was shed, or expired, if that is how it ended last, and the zero time if not.
func (h *hints) endedAt(id fsm.RequestID, end requestEnd) (when time.Time) {
	if known, ok := h.byID[id]; ok && known.end == end {
		when = known.when
	}
	return when
}

// executed forgets that a request was shed or has expired: it has an outcome now, because its client sent it again.
func (h *hints) executed(id fsm.RequestID) {
	if known, ok := h.byID[id]; ok && known.end != endAnswered {
		delete(h.byID, id)
	}
}

// forgetArrivals forgets which copies were expected: with a new session they do not arrive.
func (h *hints) forgetArrivals() {
	for id, known := range h.byID {
		if known.arrivals = 0; known.end == endAnswered {
			delete(h.byID, id)
		} else {
			h.byID[id] = known
		}
	}
	h.order[endAnswered.queue()] = nil
}

// forget removes what is too old, or too much.
func (h *hints) forget(now time.Time) {
	for queue, memory := range [...]time.Duration{answeredMemory, endedMemory} {
		notes := h.order[queue]
		for len(notes) > 0 && (len(notes) > maxHints || now.Sub(notes[0].when) > memory) {
			known, ok := h.byID[notes[0].id]
			if ok && known.end.queue() == queue && !known.when.After(notes[0].when) {
				delete(h.byID, notes[0].id)
			}
			notes = notes[1:]
		}
		h.order[queue] = notes
	}
}
