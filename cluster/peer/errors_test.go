package peer

import (
	"errors"
	"fmt"
	"testing"
)

// An error that wraps two sentinels arrives at the other member as the one that comes first in
// remoteKinds: ErrOutcomeUnknown before all others.
func TestErrorOfTwoKindsArrivesAsTheFirstInTheList(t *testing.T) {
	tests := map[string]struct{ err, want, not error }{
		"unknown and not done": {
			fmt.Errorf("%w: %w", ErrNotDone, ErrOutcomeUnknown),
			ErrOutcomeUnknown, ErrNotDone,
		},
		"refused and unreachable": {
			fmt.Errorf("%w: %w", ErrRefused, ErrUnreachable), ErrRefused,
			ErrUnreachable,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for range 50 { // the order of a map would differ from time to time
				got := DecodeError(EncodeError(test.err))
				if !errors.Is(got, test.want) || errors.Is(got, test.not) ||
					got.Error() != test.err.Error() {
					t.Fatalf("%v", got)
				}
			}
		})
	}
}
