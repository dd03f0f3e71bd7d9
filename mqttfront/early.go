package mqttfront

import (
	"time"

	"holdfast/fsm"
)

const (
	// earlyMemory is how long what was learnt of a request is remembered when the request itself has not come yet.
	earlyMemory = 10 * time.Second
	// droppedMemory is how long it is remembered that a request was dropped.
	droppedMemory = 10 * time.Minute
	// maxEarly bounds how many are remembered; beyond it the oldest are forgotten, and their requests held until they expire.
	maxEarly = 1 << 17
)

// early remembers what a node learns of requests before the broker has delivered them: that they have an outcome in the log,
// or that the leader has answered them. Each word is for one arrival: a copy that a client sends later is a request of its own.
type early struct {
	memory time.Duration // 0 is earlyMemory
	byID   map[fsm.RequestID]*word
	order  []wordTime // ascending
}

type word struct {
	index uint64 // of the entry with the latest outcome; 0 for what was answered outside of the log
	count int
	when  time.Time // the latest
}

type wordTime struct {
	id   fsm.RequestID
	when time.Time
}

// note remembers a word.
func (e *early) note(id fsm.RequestID, index uint64, now time.Time) {
	if e.byID == nil {
		e.byID = make(map[fsm.RequestID]*word)
	}
	w := e.byID[id]
	if w == nil {
		w = &word{}
		e.byID[id] = w
	}
	w.index = max(w.index, index)
	w.count++
	w.when = now
	e.order = append(e.order, wordTime{id, now})
	e.forget(now)
}

// take returns the word for a request that has arrived, if there is one.
func (e *early) take(id fsm.RequestID) (index uint64, ok bool) {
	w := e.byID[id]
	if w == nil {
		return 0, false
	}
	index = w.index
	e.drop(id)
	return index, true
}

// since returns when the latest word for a request was noted; the zero time is never.
func (e *early) since(id fsm.RequestID) (when time.Time) {
	if w := e.byID[id]; w != nil {
		when = w.when
	}
	return when
}

func (e *early) drop(id fsm.RequestID) {
	if w := e.byID[id]; w != nil {
		if w.count--; w.count <= 0 {
			delete(e.byID, id)
		}
	}
}

// forget removes what is too old, or too much. A word that was taken is still in the order; a newer one of the same request
// stays.
func (e *early) forget(now time.Time) {
	memory := e.memory
	if memory == 0 {
		memory = earlyMemory
	}
	for len(e.order) > 0 && (len(e.order) > maxEarly || now.Sub(e.order[0].when) > memory) {
		if w := e.byID[e.order[0].id]; w != nil && !w.when.After(e.order[0].when) {
			delete(e.byID, e.order[0].id)
		}
		e.order = e.order[1:]
	}
}
