//go:build mutant_release_early

package mqttfront

import (
	"time"

	"holdfast/fsm"
)

// learn lets go of a request as soon as its outcome is applied, published or not.
func (f *Front) learn(id fsm.RequestID, index uint64) {
	if id.IsZero() {
		return
	}
	if r, held := f.byID[id]; held {
		f.end(r)
		return
	}
	f.early.note(id, index, time.Now())
}
