// Command simulate runs many seeds of the simulation in processes of their own, and says what came of them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"holdfast/test/sim"
)

type options struct {
	first, seeds uint64
	duration     time.Duration
	nodes        int
	ingest       string
	workers      int
	report       string
	patience     time.Duration
}

func main() {
	var o options
	flag.Uint64Var(&o.first, "first", 1, "the first seed")
	flag.Uint64Var(&o.seeds, "seeds", 200, "how many seeds")
	flag.DurationVar(&o.duration, "duration", 2*time.Minute, "of each seed's load and faults, in virtual time")
	flag.IntVar(&o.nodes, "nodes", 0, "how many nodes; 0 draws 3 or 5")
	flag.StringVar(&o.ingest, "ingest", "", "by what session requests come: everywhere or leader; empty draws")
	flag.IntVar(&o.workers, "workers", runtime.NumCPU(), "how many seeds at a time")
	flag.StringVar(&o.report, "report", "report/sim", "folder for what is needed to understand a failure")
	flag.DurationVar(&o.patience, "patience", 2*time.Minute, "how long one seed may take, in real time")
	mutants := flag.String("mutants", "", "show that the simulation catches mutants: all, or their names with commas")
	recorded := flag.Bool("recorded", false, "with -mutants: only the seeds that are known to catch them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *mutants != "" {
		err = hunt(ctx, o, *mutants, *recorded)
	} else {
		err = simulate(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

// build compiles the simulation with build tags, and returns the binary.
func build(ctx context.Context, folder string, tags ...string) (string, error) {
	binary := filepath.Join(folder, "sim.test"+strings.Join(tags, "-"))
	command := exec.CommandContext(ctx, "go", "test", "-c", "-tags", strings.Join(tags, ","), "-o", binary, "holdfast/test/sim")
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("build the simulation: %w", err)
	}
	return binary, nil
}

// errEnded says that a process ended without a result: it crashed, or hung.
var errEnded = errors.New("the process ended without a result")

// run runs one seed in a process of its own.
func (o *options) run(ctx context.Context, binary string, seed uint64) (*sim.Result, error) {
	limited, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	command := exec.CommandContext(limited, binary, "-test.run", "TestSeeds", "-sim.results", "-sim.first", fmt.Sprint(seed), "-sim.seeds", "1",
		"-sim.duration", o.duration.String(), "-sim.nodes", fmt.Sprint(o.nodes), "-sim.ingest", o.ingest, "-test.timeout", (o.patience * 9 / 10).String())
	command.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=1000", "GOMEMLIMIT=3GiB")
	if o.report != "" {
		command.Args = append(command.Args, "-sim.report", o.report)
	}
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	failed := command.Run() // the result tells of violations
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for line := range strings.Lines(output.String()) {
		if encoded, ok := strings.CutPrefix(line, "RESULT "); ok {
			result := &sim.Result{}
			if err := json.Unmarshal([]byte(encoded), result); err != nil {
				return nil, fmt.Errorf("the result of seed %d: %w", seed, err)
			}
			if failed != nil && len(result.Violations) == 0 { // goroutines that were left, for instance
				result.Violations = append(result.Violations, sim.Violation{Check: "end", Text: firstLines(output.String())})
			}
			return result, nil
		}
	}
	text := output.String()
	if o.report != "" {
		folder := filepath.Join(o.report, fmt.Sprintf("seed-%d", seed))
		if err := os.MkdirAll(folder, 0o750); err == nil {
			_ = os.WriteFile(filepath.Join(folder, "output.txt"), []byte(text), 0o600) // the error that counts is the other
		}
	}
	return &sim.Result{Seed: seed, Violations: []sim.Violation{{Check: "end", Text: errEnded.Error() + ": " + firstLines(text)}}}, nil
}

func firstLines(text string) string {
	const most = 600
	return text[:min(len(text), most)]
}

// numbers returns all seeds.
func (o *options) numbers() (seeds []uint64) {
	for seed := o.first; seed < o.first+o.seeds; seed++ {
		seeds = append(seeds, seed)
	}
	return seeds
}

// runAll runs seeds until all are done, or tell says that it is enough.
func (o *options) runAll(ctx context.Context, binary string, seeds []uint64, tell func(*sim.Result) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan uint64)
	var telling sync.Mutex
	var working sync.WaitGroup
	for range o.workers {
		working.Go(func() {
			for seed := range next {
				result, err := o.run(ctx, binary, seed)
				if err != nil {
					cancel(err)
					continue // so that nobody waits for this worker
				}
				telling.Lock()
				if !tell(result) {
					cancel(errEnough)
				}
				telling.Unlock()
			}
		})
	}
	for _, seed := range seeds {
		select {
		case next <- seed:
		case <-ctx.Done():
		}
	}
	close(next)
	working.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

var errEnough = errors.New("enough")

// simulate runs seeds and prints what came of them.
func simulate(ctx context.Context, o options) error {
	folder, err := os.MkdirTemp("", "holdfast-sim-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	binary, err := build(ctx, folder)
	if err != nil {
		return err
	}
	began := time.Now()
	total := newTotal()
	err = o.runAll(ctx, binary, o.numbers(), func(r *sim.Result) bool {
		total.add(r)
		if len(r.Violations) == 0 && o.seeds > 1 {
			_ = os.RemoveAll(filepath.Join(o.report, fmt.Sprintf("seed-%d", r.Seed))) // there is nothing to understand
		}
		for _, v := range r.Violations {
			text, _, _ := strings.Cut(v.Text, "\n")
			fmt.Printf("seed %d FAILED: %s: %s\n", r.Seed, v.Check, text)
		}
		if total.seeds%20 == 0 {
			fmt.Printf("%d of %d seeds, %d failed, %.0f virtual seconds per real second\n", total.seeds, o.seeds, len(total.failures), total.virtual.Seconds()/time.Since(began).Seconds())
		}
		return true
	})
	total.print(os.Stdout, time.Since(began))
	total.printFailures(os.Stdout)
	if err == nil && len(total.failures) > 0 {
		err = fmt.Errorf("%d of %d seeds failed; what is needed to understand them is in %s", len(total.failures), total.seeds, o.report)
	}
	if err == nil {
		err = total.enough()
	}
	return err
}

func flushed(w io.Writer, write func(*bufio.Writer)) {
	buffered := bufio.NewWriter(w)
	write(buffered)
	_ = buffered.Flush() // standard output: there is nobody to tell
}
