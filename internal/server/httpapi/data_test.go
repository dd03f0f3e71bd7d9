package httpapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"holdfast/cluster/peer"
)

// If a request fails after it has ended some watches, its outcome is unknown: the error says
// neither that nothing was done nor that a retry is safe. If it has ended none, the error stays as
// it is.
func TestErrorAfterSomeWatchesIsOfUnknownOutcome(t *testing.T) {
	for _, kind := range []error{peer.ErrNotDone, peer.ErrNotLeader, peer.ErrOutcomeUnknown} {
		t.Run(kind.Error(), func(t *testing.T) {
			cause := fmt.Errorf("execute: %w", kind)
			if err := partialError(0, cause); err != cause {
				t.Errorf("without an ended watch: %v", err)
			}
			err := partialError(7, cause)
			if !errors.Is(err, peer.ErrOutcomeUnknown) || errors.Is(err, peer.ErrNotDone) ||
				errors.Is(err, peer.ErrNotLeader) {
				t.Errorf("after seven: %v", err)
			}
		})
	}
}

// A count of keys goes on after the last key of each step, and stops when the context of its
// request ends.
func TestCountEndsWithItsRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	steps := []int{3, 3, 1}
	var from []string
	countAfter := func(after string) (int, int64, string) {
		from = append(from, after)
		return steps[len(from)-1], 10, fmt.Sprint("key ", len(from))
	}
	if total, err := countInSteps(ctx, 3, countAfter); err != nil || total != (KeyCount{7, 30}) ||
		!slices.Equal(from, []string{"", "key 1", "key 2"}) {
		t.Errorf("%+v from %q, %v", total, from, err)
	}
	from = nil
	_, err := countInSteps(ctx, 3, func(after string) (int, int64, string) {
		cancel()
		return countAfter(after)
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, peer.ErrNotDone) || len(from) != 1 {
		t.Errorf("after %d steps: %v", len(from), err)
	}
}
