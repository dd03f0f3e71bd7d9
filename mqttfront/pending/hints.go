package pending

import (
	"time"

	"holdfast/fsm"
)

const (
	// AnsweredMemory is how long a node keeps the hint that a request was answered, for a copy that has not arrived.
	AnsweredMemory = 10 * time.Second
	// unansweredMemory is how long a node remembers that a request was refused without a reply, or expired.
	unansweredMemory = 10 * time.Minute
	// maxHints bounds each queue of Hints.order. Beyond it the oldest hints are removed. A late copy of an answered request is then held until it expires. A
	// copy of a request that was refused without a reply, or expired, may then be executed, if another node holds it.
	maxHints = 1 << 17
)

// Hints records how requests ended: answered requests whose copy has not arrived here yet, and requests that were refused without a reply or expired. The
// node may still hold a copy of the latter. It is not safe for concurrent use. Callers pass the time.
type Hints struct {
	byID map[fsm.RequestID]hint
	// order has two queues, by End.queue. An entry stays in its queue when its hint is replaced or removed.
	order [2][]hintEntry
}

type hint struct {
	end      End
	index    uint64    // greatest log index at which it ended; 0 if only a leader's report says so, or it expired
	arrivals int       // copies that this node still expects; they count for AnsweredMemory from the time in when
	when     time.Time // when the end was recorded last
}

type hintEntry struct {
	id   fsm.RequestID
	when time.Time
}

// End is how a request ended.
type End uint8

const (
	EndAnswered End = iota // its outcome is in the log, or the leader reported it
	// EndNoReply: the log has a refusal with CodeNoReply. Either the request must not have an effect any more, and an earlier entry may have executed it; or
	// the dedup table has no room for the refusal, and the request was not executed.
	EndNoReply
	EndExpired // it expired before this node executed it
)

// The queues in Hints.order: shortMemory has the hints that are kept for AnsweredMemory, longMemory those that are kept for unansweredMemory.
const (
	shortMemory = iota
	longMemory
)

// queue returns the index in Hints.order of the entries with this end.
func (e End) queue() int {
	if e == EndAnswered {
		return shortMemory
	}
	return longMemory
}

// RecordEnd records how a request ended. index is that of the log entry, 0 if only a leader's report says so or the request expired. copyExpected says
// that this node will still receive a copy.
func (h *Hints) RecordEnd(id fsm.RequestID, end End, index uint64, copyExpected bool, now time.Time) {
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

// RecordReport records the leader's report that a request is answered. This node does not hold the request, but a copy may still arrive. It does not
// replace a hint of EndNoReply or EndExpired, which is needed to reject other copies.
func (h *Hints) RecordReport(id fsm.RequestID, now time.Time) {
	if known, ok := h.byID[id]; !ok || known.end == EndAnswered {
		h.RecordEnd(id, EndAnswered, 0, true, now)
	}
}

// Consume takes one expected copy off the hint. It returns the log index at which the request ended, 0 if only a leader's report says so. expected is false if
// no copy was expected: a further copy counts as a new request.
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

// EndedAt returns when a request ended, if end is how it ended last, else the zero time.
func (h *Hints) EndedAt(id fsm.RequestID, end End) (when time.Time) {
	if known, ok := h.byID[id]; ok && known.end == end {
		when = known.when
	}
	return when
}

// removeUnanswered removes a hint of EndNoReply or EndExpired: the log now has an outcome.
func (h *Hints) removeUnanswered(id fsm.RequestID) {
	if known, ok := h.byID[id]; ok && known.end != EndAnswered {
		delete(h.byID, id)
	}
}

// ForgetArrivals clears all expected copies: the broker does not deliver them on a new session of this node.
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

// Forget removes hints that are too old, and the oldest ones beyond maxHints.
func (h *Hints) Forget(now time.Time) {
	for queue, memory := range [...]time.Duration{shortMemory: AnsweredMemory, longMemory: unansweredMemory} {
		entries := h.order[queue]
		for len(entries) > 0 && (len(entries) > maxHints || now.Sub(entries[0].when) > memory) {
			known, ok := h.byID[entries[0].id]
			if ok && known.end.queue() == queue && !known.when.After(entries[0].when) {
				delete(h.byID, entries[0].id)
			}
			entries = entries[1:]
		}
		h.order[queue] = entries
	}
}
