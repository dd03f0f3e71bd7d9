//go:build !mutant_release_early

package mqttfront

import (
	"time"

	"holdfast/fsm"
)

// learn notes that a request that this node holds has its outcome. f.mu is held.
func (f *Front) learn(id fsm.RequestID, index uint64) {
	if id.IsZero() {
		return
	}
	r, held := f.byID[id]
	switch {
	case !held:
		f.early.note(id, index, time.Now())
	case r.outcome == 0:
		r.outcome = index
		f.known = append(f.known, knownOutcome{r, index})
	}
}
