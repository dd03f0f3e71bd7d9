package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"holdfast/test/history"
	"holdfast/test/mutants"
	"holdfast/test/overlay"
	"holdfast/test/sim"
	"holdfast/test/sim/golib"
)

// pair is a run: the seed of what happens, and the seed of the order in which goroutines run.
type pair struct{ seed, schedule uint64 }

// pairs returns the pairs that the flags ask for.
func (o *options) pairs() (pairs []pair) {
	for seed := o.first; seed < o.first+o.seeds; seed++ {
		for schedule := o.schedule; schedule < o.schedule+o.schedules; schedule++ {
			pairs = append(pairs, pair{seed, schedule})
		}
	}
	return pairs
}

// build compiles the simulation, with mutants of the product, into a folder, and returns the
// binary.
func build(ctx context.Context, folder string, broken ...mutants.Mutant) (string, error) {
	name, edited := "sim", overlay.New()
	if err := golib.Add(edited); err != nil {
		return "", err
	}
	if err := mutants.Add(ctx, edited,
		append(slices.Clone(broken), mutants.NoBootTime())...); err != nil {
		return "", err
	}
	for _, m := range broken {
		name += "-" + m.Name
	}
	written, err := edited.Write(filepath.Join(folder, name))
	if err != nil {
		return "", err
	}
	binary := filepath.Join(folder, name+".test")
	command := exec.CommandContext(ctx, "go", "test", "-c", "-tags", golib.Tag, "-overlay", written,
		"-o", binary, "holdfast/test/sim")
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("build the simulation: %w", err)
	}
	return binary, nil
}

// errEnded says that a process ended without a result: it crashed, or hung.
var errEnded = errors.New("the process ended without a result")

// run runs one pair in a process of its own.
func (o *options) run(ctx context.Context, binary string, p pair) (*sim.Result, error) {
	limited, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	command := exec.CommandContext(limited, binary, "-test.run",
		"TestSimulatedClustersKeepTheirPromises", "-sim.results", "-sim.first", fmt.Sprint(p.seed),
		"-sim.seeds", "1",
		"-sim.schedule", fmt.Sprint(p.schedule), "-sim.duration", o.duration.String(), "-sim.nodes",
		fmt.Sprint(o.nodes),
		"-sim.kinds", strings.Join(o.kinds, ","), "-sim.without", strings.Join(o.without, ","),
		"-sim.switches", o.switches, fmt.Sprintf("-sim.verbose=%t", o.verbose),
		"-test.timeout", (o.patience * 9 / 10).String())
	command.Env = append(os.Environ(), "GOMEMLIMIT=4GiB")
	if o.report != "" {
		command.Args = append(command.Args, "-sim.report", o.report)
	}
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	failed := command.Run() // the result lists the violations
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for line := range strings.Lines(output.String()) {
		if encoded, ok := strings.CutPrefix(line, "RESULT "); ok {
			result := &sim.Result{}
			if err := json.Unmarshal([]byte(encoded), result); err != nil {
				return nil, fmt.Errorf("the result of seed %d, schedule %d: %w", p.seed, p.schedule,
					err)
			}
			if failed != nil && len(result.Violations) == 0 {
				// for instance because goroutines were left over
				result.Violations = append(result.Violations,
					history.Violation{Check: "end", Text: firstLines(output.String())})
			}
			return result, nil
		}
	}
	text := output.String()
	if o.report != "" {
		if err := os.MkdirAll(o.folder(p), 0o755); err == nil {
			// the error that matters is in the result
			_ = os.WriteFile(filepath.Join(o.folder(p), "output.txt"), []byte(text), 0o600)
		}
	}
	config := sim.Config{
		Seed: p.seed, Schedule: p.schedule, Duration: o.duration, Nodes: o.nodes,
		Kinds: o.kinds, Without: o.without,
	}
	return &sim.Result{
		Seed: p.seed, Schedule: p.schedule, Again: config.Again(),
		Violations: []history.Violation{{Check: "end", Text: errEnded.Error() + ": " +
			firstLines(text)}},
	}, nil
}

func firstLines(text string) string {
	const most = 600
	return text[:min(len(text), most)]
}

// runAll runs pairs, as many at a time as there are workers, until all are done or tell returns
// false. tell gets each result, one at a time.
func (o *options) runAll(ctx context.Context, binary string, pairs []pair,
	tell func(*sim.Result) bool,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan pair)
	var telling sync.Mutex
	var working sync.WaitGroup
	for range o.workers {
		working.Go(func() {
			for p := range next {
				result, err := o.run(ctx, binary, p)
				if err != nil {
					cancel(err)
					continue // ctx has ended: the run of another pair fails at once
				}
				telling.Lock()
				if !tell(result) {
					cancel(errEnough)
				}
				telling.Unlock()
			}
		})
	}
	for _, p := range pairs {
		select {
		case next <- p:
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
