package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"holdfast/test/history"
	"holdfast/test/sim"
)

// total sums up results.
type total struct {
	runs       int
	failures   []*sim.Result
	virtual    time.Duration
	operations int64
	kinds      map[string]int
	faults     map[string]int
	allFaults  int
	ordered    int            // runs in which the order of each client was checked
	complete   int            // runs in which no notification was allowed to be missing
	expected   int            // notifications that had to come
	repeated   int            // notifications that came again
	stops      uint64         // how often a node was stopped at a synchronisation point
	delays     uint64         // how often one goroutine was delayed there
	known      map[string]int // how many runs showed a finding that is not mended, by its name
	scans      int            // scans that were checked
	pages      int            // pages of these scans
	sums       int            // sums of all accounts of a bank that were checked
	undecided  int            // keys that could not be checked in time
	recovered  time.Duration  // the longest time until service was back
}

func newTotal() *total {
	return &total{
		kinds: make(map[string]int), faults: make(map[string]int),
		known: make(map[string]int),
	}
}

// add counts a run. A run that pairs.txt lists as open must show its finding, a failure that is
// known and not mended. It counts as failed if it does not, or if it fails in other checks.
func (t *total) add(r *sim.Result, known map[pair]finding) {
	t.runs++
	t.virtual += r.Virtual
	t.operations += r.Operations
	for kind, count := range r.Kinds {
		t.kinds[kind] += count
	}
	for kind, count := range r.Faults {
		t.faults[kind] += count
		t.allFaults += count
	}
	if r.OrderChecked {
		t.ordered++
	}
	if r.CompletenessChecked {
		t.complete++
	}
	t.expected += r.Expected
	t.repeated += r.Repeated
	t.scans += r.Scans
	t.pages += r.Pages
	t.sums += r.Sums
	t.undecided += r.Undecided
	t.stops += r.Summary.Stops
	t.delays += r.Summary.Delays
	t.recovered = max(t.recovered, r.RecoveryTime)
	found := known[pair{r.Seed, r.Schedule}]
	switch {
	case found.open && len(r.Violations) == 0:
		r.Violations = append(r.Violations,
			history.Violation{
				Check: "pairs.txt",
				Text:  "this run does not show the finding any more: " + found.name,
			})
		t.failures = append(t.failures, r)
	case found.open && slices.Equal(violated(r), found.checks):
		t.known[found.name]++
	case len(r.Violations) > 0:
		t.failures = append(t.failures, r)
	}
}

// violated returns the checks that found something, sorted, each once.
func violated(r *sim.Result) (checks []string) {
	for _, v := range r.Violations {
		checks = append(checks, v.Check)
	}
	slices.Sort(checks)
	return slices.Compact(checks)
}

func (t *total) perSecond() float64 {
	return float64(t.operations) / max(t.virtual.Seconds(),
		1)
}
func (t *total) faultGap() time.Duration { return t.virtual / time.Duration(max(t.allFaults, 1)) }

func (t *total) print(w io.Writer, took time.Duration) {
	flushed(w, func(b *bufio.Writer) {
		hours := t.virtual.Hours()
		fmt.Fprintf(b, "\n%d runs, %d failed; %.2f virtual hours in %v: %.0f virtual seconds per real second\n",
			t.runs, len(t.failures), hours, took.Round(time.Second),
			t.virtual.Seconds()/took.Seconds())
		fmt.Fprintf(b, "%d operations (%.1f a virtual second), %d faults that had an effect (one each %v)\n",
			t.operations, t.perSecond(), t.allFaults, t.faultGap().Round(100*time.Millisecond))
		fmt.Fprintf(b, "%d stops of a node between two synchronisation points, %d delays of one goroutine\n", t.stops, t.delays)
		fmt.Fprintf(b, "order of clients checked in %d runs; notifications complete in %d runs, %d that had to come, %d repeated; %d scans of %d pages; %d sums of a bank; keys undecided: %d; service back after %v at the latest\n",
			t.ordered, t.complete, t.expected, t.repeated, t.scans, t.pages, t.sums, t.undecided,
			t.recovered.Round(time.Millisecond))
		for _, name := range slices.Sorted(maps.Keys(t.known)) {
			fmt.Fprintf(b, "known, and not mended: %s: %d runs\n", name, t.known[name])
		}
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

// printFailures prints what each failed run violated. It comes at the very end, so that a log that
// was truncated still shows it.
func (t *total) printFailures(w io.Writer) {
	const longest = 1500 // bytes of one violation: the whole of it is in the report
	flushed(w, func(b *bufio.Writer) {
		for _, r := range t.failures {
			fmt.Fprintf(b, "seed %d, schedule %d, %d nodes, %v: %s\n", r.Seed, r.Schedule, r.Nodes,
				r.Virtual.Round(time.Second), r.Again)
			for _, v := range r.Violations {
				fmt.Fprintf(b, "  %s: %s\n", v.Check, v.Text[:min(len(v.Text), longest)])
			}
		}
	})
}

// What all runs together have to reach: with less they would find nothing.
const (
	leastOperations = 20               // operations per virtual second
	mostBetween     = 10 * time.Second // mean time between two faults
	// with this many runs or more, enough of them must have been checked in full
	manySeeds = 20
)

// checkCoverage returns an error if the runs did or checked too little.
func (t *total) checkCoverage() error {
	switch {
	case t.perSecond() < leastOperations:
		return fmt.Errorf("only %.1f operations a virtual second: fewer than %d", t.perSecond(),
			leastOperations)
	case t.faultGap() > mostBetween:
		return fmt.Errorf("only one fault each %v: more than %v apart", t.faultGap(), mostBetween)
	case t.runs >= manySeeds &&
		(t.undecided*manySeeds > t.runs || t.ordered*3 < t.runs || t.complete*4 < t.runs ||
			t.repeated == 0):
		return fmt.Errorf("too many checks were left out: order checked in %d runs, completeness in %d, %d keys undecided", t.ordered, t.complete, t.undecided)
	default:
		return nil
	}
}
