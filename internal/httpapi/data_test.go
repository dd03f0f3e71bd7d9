package httpapi

import (
	"errors"
	"fmt"
	"testing"

	"holdfast/cluster/peer"
)

// A request that has ended some watches is never said to be not done, and never tried again: its outcome is unknown. Before that the error stays.
func TestErrorAfterSomeWatchesIsOfUnknownOutcome(t *testing.T) {
	for _, kind := range []error{peer.ErrNotDone, peer.ErrNotLeader, peer.ErrOutcomeUnknown} {
		t.Run(kind.Error(), func(t *testing.T) {
			cause := fmt.Errorf("execute: %w", kind)
			if err := partialError(0, cause); err != cause {
				t.Errorf("without an ended watch: %v", err)
			}
			err := partialError(7, cause)
			if !errors.Is(err, peer.ErrOutcomeUnknown) || errors.Is(err, peer.ErrNotDone) || errors.Is(err, peer.ErrNotLeader) {
				t.Errorf("after seven: %v", err)
			}
		})
	}
}
