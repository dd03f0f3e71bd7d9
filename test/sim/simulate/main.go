// Command simulate runs the simulation for many pairs of seed and schedule, each in a process of
// its own, and says what came of them.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"holdfast/test/sim"
)

type options struct {
	first, seeds        uint64
	schedule, schedules uint64
	duration            time.Duration
	nodes               int
	without             []string
	kinds               []string
	workers             int
	report              string
	patience            time.Duration
	verbose             bool
	known               bool   // also run the pairs of pairs.txt
	switches            string // file for the switches between goroutines of a run
	mutants, mode       string
}

func main() {
	var o options
	var without, kinds string
	flag.Uint64Var(&o.first, "first", 1,
		"the first seed: of the settings, the faults, and what the clients want")
	flag.Uint64Var(&o.seeds, "seeds", 200, "how many seeds")
	flag.Uint64Var(&o.schedule, "schedule", 1,
		"the first schedule of each seed: the order in which goroutines run; 0 is Go's own order")
	flag.Uint64Var(&o.schedules, "schedules", 1, "how many schedules of each seed")
	flag.DurationVar(&o.duration, "duration", 2*time.Minute,
		"of the load and the faults of each run, in virtual time")
	flag.IntVar(&o.nodes, "nodes", 0, "how many nodes; 0 draws 3 or 5")
	flag.StringVar(&kinds, "kinds", "",
		"the kinds of faults that are drawn, with commas; empty is all")
	flag.StringVar(&without, "without", "",
		"what is left out: numbers of faults and ids of clients, with commas")
	flag.IntVar(&o.workers, "workers", runtime.NumCPU(), "how many runs at a time")
	flag.StringVar(&o.report, "report", "report/sim",
		"folder for what is needed to understand a failure")
	flag.DurationVar(&o.patience, "patience", 10*time.Minute,
		"how long one run may take, in real time; it has a low priority on a machine that is busy")
	flag.StringVar(&o.mutants, "mutants", "",
		"show that the simulation catches mutants: all, or their names with commas; with shrink, the mutant that is run")
	flag.StringVar(&o.mode, "mode", "run",
		"run; replay: each run twice, to compare all switches between goroutines; shrink: make the first run that fails smaller")
	flag.BoolVar(&o.known, "pairs", false,
		"also run the pairs of pairs.txt: those of all failures that were ever found")
	flag.Parse()
	if kinds != "" {
		o.kinds = strings.Split(kinds, ",")
	}
	if without != "" {
		o.without = strings.Split(without, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.do(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

func (o *options) do(ctx context.Context) error {
	for _, kind := range o.kinds {
		if !slices.Contains(sim.Kinds(), kind) {
			return fmt.Errorf("there is no kind of fault %q: there are %q", kind, sim.Kinds())
		}
	}
	folder, err := os.MkdirTemp("", "holdfast-sim-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	switch o.mode {
	case "replay":
		return o.compare(ctx, folder)
	case "shrink":
		return o.shrink(ctx, folder)
	case "run":
		if o.mutants != "" {
			return o.hunt(ctx, folder)
		}
		return o.simulate(ctx, folder)
	default:
		return fmt.Errorf("mode %q is neither run nor replay nor shrink", o.mode)
	}
}

// simulate runs pairs and prints what came of them.
func (o *options) simulate(ctx context.Context, folder string) error {
	binary, err := build(ctx, folder)
	if err != nil {
		return err
	}
	pairs, known := o.pairs(), map[pair]finding{}
	if o.known {
		if known, err = recorded(); err != nil {
			return err
		}
		pairs = slices.DeleteFunc(pairs, func(p pair) bool { _, is := known[p]; return is })
		pairs = append(sorted(known), pairs...)
	}
	o.verbose = len(pairs) == 1
	began := time.Now()
	total := newTotal()
	err = o.runAll(ctx, binary, pairs, func(r *sim.Result) bool {
		total.add(r, known)
		if len(r.Violations) == 0 && len(pairs) > 1 {
			// the run has passed: there is nothing to report
			_ = os.RemoveAll(o.folder(pair{r.Seed, r.Schedule}))
		}
		verdict := "FAILED"
		if known[pair{r.Seed, r.Schedule}].open {
			verdict = "is listed as open"
		}
		seen := make(map[string]bool)
		for _, v := range r.Violations {
			if seen[v.Check] {
				continue
			}
			seen[v.Check] = true
			text, _, _ := strings.Cut(v.Text, "\n")
			fmt.Printf("seed %d schedule %d %s: %s: %s\n", r.Seed, r.Schedule, verdict, v.Check,
				text)
		}
		if total.runs%20 == 0 {
			fmt.Printf("%d of %d runs, %d failed, %.0f virtual seconds per real second\n",
				total.runs, len(pairs), len(total.failures),
				total.virtual.Seconds()/time.Since(began).Seconds())
		}
		return true
	})
	total.print(os.Stdout, time.Since(began))
	total.printFailures(os.Stdout)
	if err == nil && len(total.failures) > 0 {
		err = fmt.Errorf("%d of %d runs failed; what is needed to understand them is in %s",
			len(total.failures), total.runs, o.report)
	}
	if err == nil {
		err = total.checkCoverage()
	}
	return err
}

// folder is where the report of a run is.
func (o *options) folder(p pair) string {
	return filepath.Join(o.report, fmt.Sprintf("seed-%d-%d", p.seed, p.schedule))
}

func flushed(w io.Writer, write func(*bufio.Writer)) {
	buffered := bufio.NewWriter(w)
	write(buffered)
	_ = buffered.Flush() // standard output: there is nobody to tell
}
