package load_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/load"
)

func run(t *testing.T, options load.Options,
	request func(context.Context, int) error,
) *load.Result {
	t.Helper()
	result, err := load.Run(t.Context(), options, request)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestClosedLoopKeepsRequestsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var underWay, most atomic.Int64
		result := run(t, load.Options{
			Outstanding: 4, Warmup: time.Second,
			Duration: 10 * time.Second,
		}, func(context.Context, int) error {
			most.Store(max(most.Load(), underWay.Add(1)))
			defer underWay.Add(-1)
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		if most.Load() != 4 || result.Requests < 3990 || result.Requests > 4010 ||
			result.P50 < 9_990 || result.P50 > 10_010 {
			t.Errorf("%d outstanding at most: %+v", most.Load(), result)
		}
	})
}

// While a system hangs for a second, requests remain due. An open loop counts their wait: a tenth
// of all requests has a latency of up to a second, and not only the one that was under way.
func TestOpenLoopHasNoCoordinatedOmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		result := run(t, load.Options{Outstanding: 1, Rate: 100, Duration: 10 * time.Second},
			func(context.Context, int) error {
				if at := time.Since(began); at >= 5*time.Second && at < 6*time.Second {
					time.Sleep(6*time.Second - at)
				}
				time.Sleep(time.Millisecond)
				return nil
			})
		if result.Requests != 1000 || result.P50 > 2_000 || result.P90 > 120_000 ||
			result.P99 < 800_000 || result.Max < 990_000 {
			t.Errorf("%+v", result)
		}
	})
}

// If a system cannot keep up with Options.Rate, the result has the rate that it reached, and
// latencies with the time in the backlog.
func TestOverloadedOpenLoopReportsItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		result := run(t, load.Options{Outstanding: 1, Rate: 1000, Duration: 10 * time.Second},
			func(context.Context, int) error {
				time.Sleep(5 * time.Millisecond)
				return nil
			})
		if result.Requests != 10_000 || result.Rate > 201 || result.Rate < 199 ||
			result.Max < 39_000_000 {
			t.Errorf("%+v", result)
		}
	})
}

// A closed loop counts a request that began in the warmup and was answered in the measurement.
// Otherwise a slow system would seem slower than it is.
func TestClosedLoopCountsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		result := run(t, load.Options{Outstanding: 10, Warmup: time.Second, Duration: time.Second},
			func(context.Context, int) error {
				time.Sleep(300 * time.Millisecond)
				return nil
			})
		if result.Requests != 30 {
			t.Errorf("%+v", result)
		}
	})
}

func TestErrorsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no")
		var made atomic.Int64
		var intervals []load.Interval
		result := run(t, load.Options{
			Outstanding: 1, Rate: 10, Duration: 3 * time.Second,
			Progress: func(i load.Interval) { intervals = append(intervals, i) },
		}, func(context.Context, int) error {
			time.Sleep(time.Millisecond)
			switch made.Add(1) % 3 {
			case 0:
				return failure
			case 1:
				return fmt.Errorf("%w: who knows", load.ErrUnknown)
			}
			return nil
		})
		if result.Errors != 10 || result.Unknown != 10 || result.Requests != 10 ||
			!errors.Is(result.Last, failure) {
			t.Errorf("%+v", result)
		}
		if len(intervals) < 2 || intervals[1].Failed < 12 || intervals[1].Requests < 3 ||
			intervals[1].Rate < 3 {
			t.Errorf("progress: %+v", intervals)
		}
		var text bytes.Buffer
		if err := result.WriteHistogram(&text); err != nil ||
			!strings.Contains(text.String(), "Total count    =           10") {
			t.Errorf("%v\n%s", err, text.String())
		}
	})
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for name, options := range map[string]load.Options{
		"Outstanding": {Duration: 1}, "Duration": {Outstanding: 1},
		"Rate":   {Outstanding: 1, Duration: 1, Rate: -1},
		"Warmup": {Outstanding: 1, Duration: 1, Warmup: -1},
	} {
		t.Run(name, func(t *testing.T) {
			if err := options.Validate(); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v", err)
			}
		})
	}
}

// An open loop that keeps up reports the rate that was offered, also if its last request is due
// long before its end.
func TestOpenLoopReportsTheOfferedRate(t *testing.T) {
	for _, rate := range []float64{0.1, 1, 100} {
		t.Run(fmt.Sprintf("%v requests per second", rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				result := run(t,
					load.Options{Outstanding: 4, Duration: 10 * time.Second, Rate: rate},
					func(context.Context, int) error { return nil })
				if result.Rate != rate {
					t.Errorf("%v requests a second were offered, %v are reported", rate,
						result.Rate)
				}
			})
		})
	}
}
