package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"holdfast/test/sim"
)

// total sums up results.
type total struct {
	seeds      int
	failures   []*sim.Result
	virtual    time.Duration
	operations int64
	kinds      map[string]int
	faults     map[string]int
	allFaults  int
	ordered    int
	complete   int
	expected   int
	repeated   int
	undecided  int
	recovered  time.Duration // the longest
}

func newTotal() *total { return &total{kinds: make(map[string]int), faults: make(map[string]int)} }

func (t *total) add(r *sim.Result) {
	t.seeds++
	t.virtual += r.Virtual
	t.operations += r.Operations
	for kind, count := range r.Kinds {
		t.kinds[kind] += count
	}
	for kind, count := range r.Faults {
		t.faults[kind] += count
		t.allFaults += count
	}
	if r.Ordered {
		t.ordered++
	}
	if r.Complete {
		t.complete++
	}
	t.expected += r.Expected
	t.repeated += r.Repeated
	t.undecided += r.Undecided
	t.recovered = max(t.recovered, r.Recovered)
	if len(r.Violations) > 0 {
		t.failures = append(t.failures, r)
	}
}

func (t *total) perSecond() float64      { return float64(t.operations) / max(t.virtual.Seconds(), 1) }
func (t *total) faultGap() time.Duration { return t.virtual / time.Duration(max(t.allFaults, 1)) }

func (t *total) print(w io.Writer, took time.Duration) {
	flushed(w, func(b *bufio.Writer) {
		hours := t.virtual.Hours()
		fmt.Fprintf(b, "\n%d seeds, %d failed; %.2f virtual hours in %v: %.0f virtual seconds per real second\n",
			t.seeds, len(t.failures), hours, took.Round(time.Second), t.virtual.Seconds()/took.Seconds())
		fmt.Fprintf(b, "%d operations (%.1f a virtual second), %d faults that had an effect (one each %v)\n",
			t.operations, t.perSecond(), t.allFaults, t.faultGap().Round(100*time.Millisecond))
		fmt.Fprintf(b, "order of clients checked in %d seeds; notifications complete in %d seeds, %d that had to come, %d repeated; keys undecided: %d; service back after %v at the latest\n",
			t.ordered, t.complete, t.expected, t.repeated, t.undecided, t.recovered.Round(time.Millisecond))
		fmt.Fprintf(b, "operations per virtual hour:")
		for _, kind := range slices.Sorted(maps.Keys(t.kinds)) {
			fmt.Fprintf(b, " %s %.0f", kind, float64(t.kinds[kind])/hours)
		}
		fmt.Fprintf(b, "\nfaults per virtual hour:\n")
		for _, kind := range slices.Sorted(maps.Keys(t.faults)) {
			fmt.Fprintf(b, "  %-48s %6.1f\n", kind, float64(t.faults[kind])/hours)
		}
	})
}

// printFailures says at the very end, where a log that was cut still shows it, what each failed seed broke.
func (t *total) printFailures(w io.Writer) {
	const longest = 1500 // bytes of one violation: the whole of it is in the report
	flushed(w, func(b *bufio.Writer) {
		for _, r := range t.failures {
			fmt.Fprintf(b, "seed %d, %d nodes, %v:\n", r.Seed, r.Nodes, r.Virtual.Round(time.Second))
			for _, v := range r.Violations {
				fmt.Fprintf(b, "  %s: %s\n", v.Check, v.Text[:min(len(v.Text), longest)])
			}
		}
	})
}

// What a run has to reach to count: less would find nothing.
const (
	leastOperations = 20 // a virtual second
	mostBetween     = 10 * time.Second
	manySeeds       = 20 // from as many on it is held against what checks were made
)

// enough returns an error when there was too little to see.
func (t *total) enough() error {
	switch {
	case t.perSecond() < leastOperations:
		return fmt.Errorf("only %.1f operations a virtual second: fewer than %d", t.perSecond(), leastOperations)
	case t.faultGap() > mostBetween:
		return fmt.Errorf("only one fault each %v: more than %v apart", t.faultGap(), mostBetween)
	case t.seeds >= manySeeds && (t.undecided*manySeeds > t.seeds || t.ordered*3 < t.seeds || t.complete*4 < t.seeds || t.repeated == 0):
		return fmt.Errorf("too many checks were left out: order checked in %d seeds, completeness in %d, %d keys undecided", t.ordered, t.complete, t.undecided)
	default:
		return nil
	}
}
