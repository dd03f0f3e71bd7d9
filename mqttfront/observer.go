package mqttfront

import "holdfast/fsm"

// The methods below implement cluster.Observer: what the store reports to the front end.

// Applied implements the store's observer.
func (f *Front) Applied(outcome *fsm.EntryOutcome, tags []any) {
	f.dispatcher.Applied(outcome, tags)
	f.mirror.Applied(outcome)
}

// Restored implements the store's observer.
func (f *Front) Restored(fsm.Status) { f.mirror.Restored() }

// ReadDone implements the store's observer.
func (f *Front) ReadDone(tag any, _ uint64, result fsm.Result) {
	f.dispatcher.ReadDone(tag, result)
}

// Failed implements the store's observer.
func (f *Front) Failed(tag any, invalid bool) { f.dispatcher.Failed(tag, invalid) }
