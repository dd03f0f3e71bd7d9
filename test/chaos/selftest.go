package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// mutant is a build of the product with one rule broken, and what is known to show it.
type mutant struct {
	name, breaks string
	seed         uint64
	faults       []string
}

func mutants() []mutant {
	return []mutant{
		{"ack_early", "acknowledge before commit", 1, []string{"power failure of the leader", "partition: leader alone", "pause of the leader"}},
		{"leader_state", "reads by whoever believes to lead", 2, []string{"partition: leader alone", "pause of the leader"}},
		{"dedup_off", "no deduplication", 3, []string{"power failure of the leader", "broker restart"}},
		{"fence_off", "no fencing", 4, []string{"clients paused", "power failure of the leader"}},
		{"wall_expiry", "expiry by the wall clock", 5, []string{"clock jump", "leadership transfer"}},
		{"mark_high", "notifications dropped on take-over", 6, []string{"power failure of the leader", "kill -9 of the leader", "leadership transfer"}},
	}
}

// errUncaught says that a mutant got through.
var errUncaught = errors.New("not caught")

// runSelftest runs the mutants, each with faults that fit, and expects a broken promise of each.
func runSelftest(ctx context.Context, o options) error {
	var faults error
	for _, m := range mutants() {
		if o.mutant != "" && o.mutant != m.name {
			continue
		}
		began := time.Now()
		err := runOnce(ctx, options{
			seed: m.seed, nodes: 3, duration: 2 * time.Minute, folder: filepath.Join(o.folder, "mutant-"+m.name), mutant: m.name, kinds: m.faults,
		})
		took := time.Since(began).Round(time.Second)
		switch {
		case errors.Is(err, errViolated):
			fmt.Printf("%s (%s): caught, %v with everything\n", m.name, m.breaks, took)
		case err == nil:
			faults = errors.Join(faults, fmt.Errorf("%s (%s): %w by %s", m.name, m.breaks, errUncaught, strings.Join(m.faults, ", ")))
		default:
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return faults
}
