package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"holdfast/test/mutants"
	"holdfast/test/sim"
)

// finds returns the expected checks that found something. If none is expected, it returns all that
// found something but "end" (the process crashed or hung) and "simulation" (the simulation itself
// failed).
func finds(r *sim.Result, expected ...string) (checks []string) {
	for _, v := range r.Violations {
		counts := slices.Contains(expected, v.Check) || len(expected) == 0 && v.Check != "end" &&
			v.Check != "simulation"
		if counts && !slices.Contains(checks, v.Check) {
			checks = append(checks, v.Check)
		}
	}
	return checks
}

// wanted returns the mutants that were asked for.
func (o *options) wanted() (wanted []mutants.Mutant, err error) {
	if o.mutants == "all" {
		return mutants.All(), nil
	}
	if o.mutants == "" {
		return nil, nil
	}
	for name := range strings.SplitSeq(o.mutants, ",") {
		m, err := mutants.Find(name)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, m)
	}
	return wanted, nil
}

// hunt shows for each mutant how many runs it took to catch it. The unbroken product has to pass
// the run that catches it.
func (o *options) hunt(ctx context.Context, folder string) error {
	o.report = ""
	wanted, err := o.wanted()
	if err != nil {
		return err
	}
	whole, err := build(ctx, folder)
	if err != nil {
		return err
	}
	var escaped []string
	for _, m := range wanted {
		focused := *o
		if len(o.kinds) == 0 {
			focused.kinds = m.Faults
		}
		caught, tried, err := focused.catch(ctx, folder, whole, m)
		if err != nil {
			return err
		}
		if caught == nil {
			escaped = append(escaped, m.Name)
			fmt.Printf("%-22s %-58s NOT CAUGHT in %d runs (would be by: %s)\n", m.Name, m.What,
				tried, m.Check)
			continue
		}
		fmt.Printf("%-22s %-58s caught by seed %d, schedule %d, run %d: %s\n", m.Name, m.What,
			caught.Seed, caught.Schedule, tried, strings.Join(finds(caught, m.Checks()...), ", "))
	}
	if len(escaped) > 0 {
		return fmt.Errorf("the simulation does not catch %v", escaped)
	}
	return nil
}

// catch runs pairs until one fails with the mutant and passes with the unbroken product.
func (o *options) catch(ctx context.Context, folder, whole string,
	m mutants.Mutant,
) (caught *sim.Result, tried int, err error) {
	binary, err := build(ctx, folder, m)
	if err != nil {
		return nil, 0, err
	}
	var failed error
	err = o.runAll(ctx, binary, o.pairs(), func(r *sim.Result) bool {
		if caught != nil {
			return false
		}
		tried++
		if len(finds(r, m.Checks()...)) == 0 {
			return true
		}
		unbroken, err := o.run(ctx, whole, pair{r.Seed, r.Schedule})
		if err != nil {
			failed = err
			return false
		}
		if len(unbroken.Violations) > 0 {
			fmt.Printf("seed %d, schedule %d shows %s without a mutant, too\n", r.Seed, r.Schedule,
				unbroken.Violations[0].Check)
			return true
		}
		caught = r
		return false
	})
	if failed != nil {
		err = failed
	}
	return caught, tried, err
}
