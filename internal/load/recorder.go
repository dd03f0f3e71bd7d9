package load

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded in microseconds, from 1 µs to 10 min, to three digits.
const (
	longest = int64(10 * time.Minute / time.Microsecond)
	digits  = 3
	// maxShards bounds the number of histograms, which the workers share: one for each worker could
	// take a gigabyte.
	maxShards = 8
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, digits) }

// recorder gathers what many goroutines measure.
type recorder struct {
	shards []shard
	total  *hdrhistogram.Histogram // only generator.watch uses it, until Run returns
	errors int64
	// unknown counts the errors that wrap ErrUnknown. errors does not include them.
	unknown int64
	last    error // the latest error, nil if there was none
}

type shard struct {
	mu              sync.Mutex
	histogram       *hdrhistogram.Histogram
	errors, unknown int64
	last            error
}

func newRecorder(shards int) *recorder {
	r := &recorder{shards: make([]shard, shards), total: newHistogram()}
	for i := range r.shards {
		r.shards[i].histogram = newHistogram()
	}
	return r
}

func (r *recorder) record(worker int, took time.Duration, err error) {
	s := &r.shards[worker%len(r.shards)]
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, ErrUnknown):
		s.unknown++
		s.last = err
	case err != nil:
		s.errors++
		s.last = err
	default:
		_ = s.histogram.RecordValue(min(max(took.Microseconds(), 1), longest)) // never out of range
	}
}

// Interval is what was measured since the last Interval. Requests, Rate and the percentiles count
// requests without an error.
type Interval struct {
	At       time.Duration // since the measurement began
	Requests int64
	Rate     float64 // requests per second
	P50, P99 time.Duration
	// failed requests since the measurement began, including those whose outcome is unknown
	Failed int64
}

// gather moves the measurements of the shards into the total, and returns them as an Interval
// without At and Rate.
func (r *recorder) gather() (interval Interval) {
	recent := newHistogram()
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		recent.Merge(s.histogram)
		s.histogram.Reset()
		r.errors += s.errors
		r.unknown += s.unknown
		s.errors, s.unknown = 0, 0
		if s.last != nil {
			r.last, s.last = s.last, nil
		}
		s.mu.Unlock()
	}
	r.total.Merge(recent)
	return Interval{
		Requests: recent.TotalCount(), P50: microseconds(recent.ValueAtQuantile(50)),
		P99:    microseconds(recent.ValueAtQuantile(99)),
		Failed: r.errors + r.unknown,
	}
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Result is what a Run measured. Latencies are in microseconds. Requests, Rate and the latencies
// count what was answered without an error. Errors does not include Unknown, the errors that wrap
// ErrUnknown.
type Result struct {
	Outstanding int     `json:"outstanding"`
	Target      float64 `json:"targetRate,omitempty"` // Options.Rate: 0 for a closed loop
	Seconds     float64 `json:"seconds"`
	Requests    int64   `json:"requests"`
	Errors      int64   `json:"errors"`
	Unknown     int64   `json:"unknown"`
	Rate        float64 `json:"requestsPerSecond"`
	P50         int64   `json:"p50"`
	P90         int64   `json:"p90"`
	P99         int64   `json:"p99"`
	P999        int64   `json:"p99.9"`
	Max         int64   `json:"max"`

	// Last is the last error, if there was one.
	Last error `json:"-"`

	histogram *hdrhistogram.Histogram
}

func (r *recorder) result(options *Options, took time.Duration) *Result {
	h := r.total
	return &Result{
		Outstanding: options.Outstanding, Target: options.Rate, Seconds: took.Seconds(),
		Requests: h.TotalCount(), Errors: r.errors, Unknown: r.unknown,
		Rate: float64(h.TotalCount()) / took.Seconds(),
		P50:  h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), P99: h.ValueAtQuantile(99),
		P999: h.ValueAtQuantile(99.9), Max: h.Max(),
		Last: r.last, histogram: h,
	}
}

// WriteHistogram writes the latencies in milliseconds as a percentile distribution, the text format
// of HdrHistogram (.hgrm) that its plotters read.
func (r *Result) WriteHistogram(w io.Writer) error {
	const ticksPerHalfDistance, perMillisecond = 5, 1000
	if _, err := r.histogram.PercentilesPrint(w, ticksPerHalfDistance, perMillisecond); err != nil {
		return fmt.Errorf("write histogram: %w", err)
	}
	return nil
}
