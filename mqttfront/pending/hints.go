package pending

import (
	"time"

	"holdfast/fsm"
)

const (
	// AnsweredMemory is how long a node remembers that a request was answered before its copy arrived.
	AnsweredMemory = 10 * time.Second
	// endedMemory is how long a node remembers that a request was refused without a reply, or expired.
	endedMemory = 10 * time.Minute
	// maxHints bounds the notes in each queue of Hints.order; beyond it the oldest hints are forgotten. A request that was answered is then held
	// until it expires, and one that was refused without a reply, or expired, may be executed from another node's copy.
	maxHints = 1 << 17
)

// Hints records how requests ended: answered ones whose copy has not arrived here yet, and those that were refused without a reply or expired,
// whether or not the node holds a copy. It has no lock and no clock.
type Hints struct {
	byID map[fsm.RequestID]hint
	// order has two queues, by End.queue. Entries that were replaced are still in them.
	order [2][]hintEntry
}

type hint struct {
	end      End
	index    uint64 // of the entry in which it ended last; 0 if only a leader's report says so, or it expired
	arrivals int    // copies still to arrive of a request that has ended; valid for AnsweredMemory after when
	when     time.Time
}

type hintEntry struct {
	id   fsm.RequestID
	when time.Time
}

// End is how a request ended.
type End uint8

const (
	EndAnswered End = iota // its outcome is in the log, or the leader reported it
	// EndNoReply: the log has a refusal without a reply (CodeNoReply), silent or without room to remember it. That entry had no effect. With
	// a silent refusal an earlier entry may have had one.
	EndNoReply
	EndExpired // no client waited for it any more, and it was not executed here
)

// The queues in Hints.order: of what is remembered for AnsweredMemory, and for endedMemory.
const (
	shortMemory = iota
	longMemory
)

// queue returns the index in Hints.order of the notes of such an end.
func (e End) queue() int {
	if e == EndAnswered {
		return shortMemory
	}
	return longMemory
}

// Ended notes how a request ended: in the log at an index, or at 0 if only a leader's report says so or it expired.
func (h *Hints) Ended(id fsm.RequestID, end End, index uint64, copyExpected bool, now time.Time) {
	if h.byID == nil {
		h.byID = make(map[fsm.RequestID]hint)
	}
	known := h.byID[id]
	if now.Sub(known.when) > AnsweredMemory {
		known = hint{}
	}
	known.end, known.index, known.when = end, max(known.index, index), now
	if copyExpected {
		known.arrivals++
	}
	h.byID[id] = known
	h.order[end.queue()] = append(h.order[end.queue()], hintEntry{id, now})
	h.Forget(now)
}

// Answered notes a leader's report of a request that this node does not hold; a copy may still arrive. It keeps a hint that the request ended without a
// reply or expired, which is needed to reject other copies.
func (h *Hints) Answered(id fsm.RequestID, now time.Time) {
	if known, ok := h.byID[id]; !ok || known.end == EndAnswered {
		h.Ended(id, EndAnswered, 0, true, now)
	}
}

// Consume consumes one expected arrival. expected is false if there was none. index is that of the log entry in which the request ended, 0 if only a leader's
// report says so. A copy that the client sends later is a request of its own.
func (h *Hints) Consume(id fsm.RequestID, now time.Time) (index uint64, expected bool) {
	known, ok := h.byID[id]
	if !ok || known.arrivals == 0 || now.Sub(known.when) > AnsweredMemory {
		return 0, false
	}
	if known.arrivals--; known.arrivals == 0 && known.end == EndAnswered {
		delete(h.byID, id)
	} else {
		h.byID[id] = known
	}
	return known.index, true
}

// EndedAt returns when a request ended, if that is how it ended last, and the zero time if not.
func (h *Hints) EndedAt(id fsm.RequestID, end End) (when time.Time) {
	if known, ok := h.byID[id]; ok && known.end == end {
		when = known.when
	}
	return when
}

// outcomeLogged removes a hint that a request ended without a reply or expired: the log now has an outcome of it.
func (h *Hints) outcomeLogged(id fsm.RequestID) {
	if known, ok := h.byID[id]; ok && known.end != EndAnswered {
		delete(h.byID, id)
	}
}

// ForgetArrivals forgets which copies were expected: with a new session they do not arrive.
func (h *Hints) ForgetArrivals() {
	for id, known := range h.byID {
		if known.arrivals = 0; known.end == EndAnswered {
			delete(h.byID, id)
		} else {
			h.byID[id] = known
		}
	}
	h.order[EndAnswered.queue()] = nil
}

// Forget removes what is too old, or too much.
func (h *Hints) Forget(now time.Time) {
	for queue, memory := range [...]time.Duration{shortMemory: AnsweredMemory, longMemory: endedMemory} {
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
