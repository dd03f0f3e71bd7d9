package backoff

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The delay doubles up to its bound, begins again after a Reset, and is cut down to a half at most.
func TestDelayDoublesUpToItsBound(t *testing.T) {
	for name, test := range map[string]struct {
		random uint64
		want   []time.Duration
	}{
		"no jitter":   {time50 / 2, []time.Duration{50, 75, 125, 125, 50}},
		"most jitter": {0, []time.Duration{25, 50, 100, 100, 25}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := New(50*time.Millisecond, 200*time.Millisecond,
					func() uint64 { return test.random })
				var waited []time.Duration
				for i := range 5 {
					if i == 4 {
						b.Reset()
					}
					began := time.Now()
					if !b.Wait(t.Context()) {
						t.Fatal("the context has not ended")
					}
					waited = append(waited, time.Since(began)/time.Millisecond)
				}
				if !slices.Equal(waited, test.want) {
					t.Errorf("%v ms, want %v", waited, test.want)
				}
			})
		})
	}
}

const time50 = uint64(50 * time.Millisecond)

// A wait ends with the context.
func TestPauseEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if !Pause(ctx, time.Nanosecond) || !Pause(ctx, 0) {
		t.Error("the context has not ended")
	}
	cancel()
	if Pause(ctx, time.Hour) || Pause(ctx, 0) {
		t.Error("the context has ended")
	}
}
