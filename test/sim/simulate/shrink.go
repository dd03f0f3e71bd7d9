package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/test/sim"
)

// attempts is how many schedules are tried with a smaller run. What is left out changes the order
// of goroutines, so the failure may need another schedule.
const attempts = 6

// errNothingFails says that there is nothing to make smaller.
var errNothingFails = errors.New("none of these runs fails")

// shrink takes the first run that fails, and leaves out faults, clients and virtual time for as
// long as the same check fails.
func (o *options) shrink(ctx context.Context, folder string) error {
	broken, err := o.wanted()
	if err != nil {
		return err
	}
	binary, err := build(ctx, folder, broken...)
	if err != nil {
		return err
	}
	o.report = ""
	var least *sim.Result
	err = o.runAll(ctx, binary, o.pairs(), func(r *sim.Result) bool {
		if least == nil && len(finds(r)) > 0 {
			least = r
		}
		return least == nil
	})
	if err != nil {
		return err
	}
	if least == nil {
		return errNothingFails
	}
	check, tried := finds(least)[0], 0
	fmt.Printf("seed %d, schedule %d fails: %s\n", least.Seed, least.Schedule, check)
	s := shrinker{duration: o.duration, without: o.without}
	s.fails = func(duration time.Duration, without []string) bool {
		smaller := *o
		smaller.duration, smaller.without = duration, without
		found, runs := smaller.failsWithSomeSchedule(ctx, binary, pair{least.Seed, least.Schedule},
			check)
		if tried += runs; found != nil {
			least = found
		}
		return found != nil
	}
	var faults []string
	for i := range least.Plan {
		faults = append(faults, strconv.Itoa(i+1))
	}
	s.shorten()
	s.leaveOut(faults)
	s.leaveOut(slices.Clone(least.Clients))
	s.shorten()
	fmt.Printf("the smallest of %d runs that still fails:\n%s", tried,
		describeRun(least, &s, check))
	return ctx.Err()
}

// failsWithSomeSchedule runs a pair, and other schedules of its seed, and returns the first result
// that fails in a check, or nil.
func (o *options) failsWithSomeSchedule(ctx context.Context, binary string, p pair,
	check string,
) (found *sim.Result, runs int) {
	const apart = 1_000_003 // distance between the numbers of two schedules
	for from := 0; from < attempts && found == nil && ctx.Err() == nil; from += o.workers {
		var pairs []pair
		for i := from; i < min(from+o.workers, attempts); i++ {
			pairs = append(pairs, pair{p.seed, p.schedule + uint64(i)*apart})
		}
		err := o.runAll(ctx, binary, pairs, func(r *sim.Result) bool {
			if runs++; found == nil && slices.Contains(finds(r), check) {
				found = r
			}
			return true
		})
		if err != nil {
			return nil, runs
		}
	}
	return found, runs
}

// shrinker makes a failing run smaller.
type shrinker struct {
	fails    func(duration time.Duration, without []string) bool
	duration time.Duration // the shortest with which the run still fails
	without  []string      // faults and clients without which it still fails
}

// try reports whether a smaller run fails. If so, it becomes the smallest.
func (s *shrinker) try(duration time.Duration, without []string) bool {
	if !s.fails(duration, without) {
		return false
	}
	s.duration, s.without = duration, without
	return true
}

// shorten halves the virtual time, and then takes smaller steps.
func (s *shrinker) shorten() {
	const least = 5 * time.Second
	for step := s.duration / 2; step >= time.Second; {
		if shorter := (s.duration - step).Round(time.Second); shorter < least ||
			!s.try(shorter, s.without) {
			step /= 2
		}
	}
}

// leaveOut leaves out as many of the parts as it can: many at once, then fewer (Zeller and
// Hildebrandt's ddmin, without its complements).
func (s *shrinker) leaveOut(parts []string) {
	for size := len(parts); size >= 1; size /= 2 {
		for from := 0; from < len(parts); {
			chunk := parts[from:min(from+size, len(parts))]
			if s.try(s.duration, slices.Concat(s.without, chunk)) {
				parts = slices.Delete(parts, from, from+len(chunk))
			} else {
				from += size
			}
		}
	}
}

// describeRun describes a run in a few lines.
func describeRun(r *sim.Result, s *shrinker, check string) string {
	var b strings.Builder
	for _, v := range r.Violations {
		if v.Check == check {
			text, _, _ := strings.Cut(v.Text, "\n")
			fmt.Fprintf(&b, "  %s: %s\n", v.Check, text)
			break
		}
	}
	for i, fault := range r.Plan {
		if !slices.Contains(s.without, strconv.Itoa(i+1)) {
			fmt.Fprintf(&b, "  fault %d: %s\n", i+1, strings.TrimSpace(fault))
		}
	}
	fmt.Fprintf(&b, "  clients: %s\n  %d nodes, %v; %s\n  again: %s\n",
		strings.Join(r.Clients, ", "), r.Nodes, s.duration, r.Settings, r.Again)
	return b.String()
}
