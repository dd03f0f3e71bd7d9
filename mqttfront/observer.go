package mqttfront

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// What the store tells and asks of a front end.

// Applied implements the store's observer.
func (f *Front) Applied(outcome *fsm.Outcome, tags []any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := outcome.Events
	notifyUpTo := func(position int) {
		for len(events) > 0 && events[0].Command <= position {
			f.role.changed(&events[0])
			events = events[1:]
		}
	}
	if !outcome.Skipped {
		for i := range outcome.Commands {
			notifyUpTo(i)
			f.appliedCommandLocked(outcome, i, tags)
		}
		notifyUpTo(len(outcome.Commands))
	}
	f.mark, f.appliedIndex = max(f.mark, outcome.Published), outcome.Index
	f.role.applied(outcome)
}

// ReadDone implements the store's observer.
func (f *Front) ReadDone(tag any, _ uint64, result fsm.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.role.readDone(tag.(*pending.Request), &result)
}

// Failed implements the store's observer. Nothing of it reaches a client: the request waits for the next leadership. One
// without an identity whose outcome is unknown must never be proposed again, so it stays unanswered.
func (f *Front) Failed(tag any, unknown bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := tag.(*pending.Request)
	if unknown {
		f.parkCommittedLocked(r)
	} else {
		f.requeueLocked(r)
	}
}

// Held returns a page of the requests that this node holds, in the order of their arrival, from a cursor that begins at 0, and
// the next cursor, 0 at the end. With an age it leaves out what is younger, and what is known to have an outcome.
func (f *Front) Held(cursor uint64, age time.Duration) (page []byte, next uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pending.Page(cursor, age, time.Now())
}

// HandleBroadcast takes the leader's report of what it answered.
func (f *Front) HandleBroadcast(message []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for len(message) >= len(fsm.RequestID{}) {
		id := fsm.RequestID(message[:len(fsm.RequestID{})])
		message = message[len(id):]
		f.role.reported(id, now)
	}
}
