package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"holdfast/test/sim"
)

// mutant is a fault that the product has when it is built with the tag mutant_ and the name.
type mutant struct {
	name  string
	what  string
	check string   // that catches it as a rule, among others
	seeds []uint64 // that caught it when they were recorded, some again: goroutines take another order each time; none where it takes hours
}

// finds returns the checkers that found something. A process that crashes or hangs shows nothing.
func finds(r *sim.Result) (checks []string) {
	for _, v := range r.Violations {
		if v.Check != "end" && v.Check != "simulation" && !slices.Contains(checks, v.Check) {
			checks = append(checks, v.Check)
		}
	}
	return checks
}

// known returns all mutants.
func known() []mutant {
	return []mutant{
		{"ack_early", "acknowledge before commit", "exactly once", []uint64{1, 2}},
		{"verify_leader", "confirm leadership by VerifyLeader alone", "linearizability", []uint64{130}},
		{"leader_state", "confirm leadership by State() == Leader", "linearizability", []uint64{31}},
		{"read_cache", "reads from a cache of 100 ms", "order of a client", []uint64{2}},
		{"dedup_off", "no deduplication", "exactly once", []uint64{1, 2}},
		{"dedup_crowded", "deduplication forgets when it is full", "exactly once", []uint64{48}},
		{"entry_order", "no check of an entry's term and number", "lock lost early", nil},
		{"fence_off", "no fencing", "fencing", []uint64{1, 2}},
		{"wall_expiry", "expiry by the wall clock", "expired early", []uint64{6, 62}},
		{"mark_high", "published mark one too high", "notifications", []uint64{17}},
		{"take_over_silent", "unpublished notifications dropped on take-over", "notifications", []uint64{2}},
		{"release_early", "hold buffer released at apply", "notifications", nil},
		{"same_id", "a wiped node comes back under its id, and votes", "recovery", []uint64{158}},
		{"one_confirmation", "connections taken over without the second confirmation", "notifications", nil},
		{"unlogged_refusal", "overload error that is not in the log", "exactly once", []uint64{8}},
		{"own_lanes", "old publishing connection not taken over", "linearizability", []uint64{130}},
		{"old_session", "session resumed however old it is", "exactly once", []uint64{2, 2, 2, 2, 2, 2}},
	}
}

// hunt shows for each mutant how many seeds it took to catch it.
func hunt(ctx context.Context, o options, names string, recorded bool) error {
	if o.ingest == "" {
		o.ingest = "everywhere" // what most of them break is in the way that requests are held
	}
	folder, err := os.MkdirTemp("", "holdfast-sim-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	o.report = ""
	if err := check(names); err != nil {
		return err
	}
	whole, err := build(ctx, folder)
	if err != nil {
		return err
	}
	var escaped []string
	for _, m := range known() {
		if names != "all" && !slices.Contains(strings.Split(names, ","), m.name) {
			continue
		}
		seeds := m.seeds
		if !recorded {
			seeds = o.numbers()
		}
		caught, tried, err := o.catch(ctx, folder, m, seeds)
		if err != nil {
			return err
		}
		if caught == nil {
			escaped = append(escaped, m.name)
			fmt.Printf("%-18s %-58s NOT CAUGHT in %d seeds (as a rule by: %s)\n", m.name, m.what, tried, m.check)
			continue
		}
		fmt.Printf("%-18s %-58s caught by seed %d, after %d: %s\n", m.name, m.what, caught.Seed, tried, strings.Join(finds(caught), ", "))
		unbroken, err := o.run(ctx, whole, caught.Seed)
		if err != nil {
			return err
		}
		if len(unbroken.Violations) > 0 {
			return fmt.Errorf("seed %d fails without the mutant, too: %s", caught.Seed, unbroken.Violations[0].Check)
		}
	}
	if len(escaped) > 0 {
		return fmt.Errorf("the simulation does not catch %v", escaped)
	}
	return nil
}

// check makes sure that all names are known.
func check(names string) error {
	for _, name := range strings.Split(names, ",") {
		if name != "all" && !slices.ContainsFunc(known(), func(m mutant) bool { return m.name == name }) {
			return fmt.Errorf("there is no mutant %q", name)
		}
	}
	return nil
}

// catch runs seeds until one catches the mutant.
func (o *options) catch(ctx context.Context, folder string, m mutant, seeds []uint64) (caught *sim.Result, tried int, err error) {
	binary, err := build(ctx, folder, "mutant_"+m.name)
	if err != nil {
		return nil, 0, err
	}
	err = o.runAll(ctx, binary, seeds, func(r *sim.Result) bool {
		tried++
		if caught == nil && len(finds(r)) > 0 {
			caught = r
		}
		return caught == nil
	})
	return caught, tried, err
}
