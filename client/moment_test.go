package client

import (
	"context"
	"testing"
	"time"
)

// The time since a moment includes the time in which the machine was suspended. A wait that is over
// because of that ends at once.
func TestSuspendedTimeCounts(t *testing.T) {
	if sinceBoot() == 0 {
		t.Skip("this system does not tell how long it was suspended")
	}
	past := now()
	past.boot -= time.Hour // as if the machine had been suspended for an hour
	if elapsed := past.elapsed(); elapsed < time.Hour {
		t.Errorf("%v have passed", elapsed)
	}
	if !pauseUntil(t.Context(), past, time.Hour) {
		t.Error("the wait was cut short")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if pauseUntil(ended, now(), time.Hour) {
		t.Error("the wait goes on after its context")
	}
}
