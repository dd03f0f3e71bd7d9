package mqttfront

import (
	"time"

	"holdfast/fsm"
)

// The methods below implement cluster.Observer: what the store reports to the front end, and what it asks the front end for.

// Applied implements the store's observer.
func (f *Front) Applied(outcome *fsm.EntryOutcome, tags []any) {
	f.dispatcher.Applied(outcome, tags)
	f.mirror.Applied(outcome)
}

// Restored implements the store's observer.
func (f *Front) Restored(status fsm.Status) {
	f.dispatcher.Restored(status)
	f.mirror.Restored()
}

// ReadDone implements the store's observer.
func (f *Front) ReadDone(tag any, index uint64, result fsm.Result) {
	f.dispatcher.ReadDone(tag, index, result)
}

// Failed implements the store's observer.
func (f *Front) Failed(tag any, unknown bool) { f.dispatcher.Failed(tag, unknown) }

// Held implements the store's observer.
func (f *Front) Held(cursor uint64, age time.Duration) (page []byte, next uint64) {
	return f.dispatcher.Held(cursor, age)
}

// HandleBroadcast implements the store's observer.
func (f *Front) HandleBroadcast(message []byte) { f.dispatcher.HandleBroadcast(message) }
