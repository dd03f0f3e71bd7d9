package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// mutant is a build of the product with one rule broken, faults that bring it to light, and the
// checks that have to see it.
type mutant struct {
	name, breaks string
	seed         uint64
	faults       []string
	checks       []string
}

func selftests() []mutant {
	return []mutant{
		{
			"ack_early", "acknowledge before commit", 1,
			[]string{
				"power failure of the leader", "partition: leader alone",
				"pause of the leader",
			},
			[]string{"linearizability", "acknowledged write lost"},
		},
		{
			"read_cache", "stale reads: from a cache of 100 ms", 2,
			[]string{"power failure of the leader", "pause of the leader"},
			[]string{"linearizability"},
		},
		{
			"dedup_off", "no deduplication", 3,
			[]string{"power failure of the leader", "broker restart"},
			[]string{"exactly once"},
		},
		{
			"fence_off", "no fencing", 4,
			[]string{"clients paused", "power failure of the leader"},
			[]string{"fencing"},
		},
		{
			"wall_expiry", "expiry by the wall clock", 5,
			[]string{"clocks jump together", "leadership transfer"},
			[]string{"expired early", "lock lost early"},
		},
		{
			"takeover_silent", "notifications dropped at a takeover", 6,
			[]string{"leader late at the broker", "power failure of the leader"},
			[]string{"notifications"},
		},
		{
			"scan_overtakes", "a SCAN overtakes its client's writes", 7,
			[]string{"power failure of the leader", "pause of the leader"},
			[]string{"scan"},
		},
		{
			"if_version_off", "a condition on the version holds for any value", 8,
			[]string{"power failure of the leader", "broker restart"},
			[]string{"linearizability"},
		},
		{
			"pattern_any", "a pattern matches what only begins like it", 9,
			[]string{"power failure of the leader", "broker restart"},
			[]string{"notifications"},
		},
		{
			"txn_partial", "a transaction that is not applied keeps a part", 10,
			[]string{"power failure of the leader", "broker restart"},
			[]string{"linearizability", "transaction"},
		},
		{
			"mirror_missing", "what the broker lost of a mirror is not published again", 11,
			[]string{"broker kill -9 without its persistence", "power failure of the leader"},
			[]string{"odd reply"},
		},
		{
			"mirror_keeps_deleted", "a retained message of a key that does not exist stays", 12,
			[]string{oldPersistence, "broker restart"},
			[]string{"odd reply"},
		},
	}
}

const (
	selftestTime = 2 * time.Minute // how long faults are injected into each run
	// limit on a mutant's whole run, from the build of the images to the verdict
	caughtWithin = 5 * time.Minute
)

// errUncaught says that none of a mutant's checks found a violation.
var errUncaught = errors.New("not caught")

// runSelftest runs each mutant with its faults: one of its checks has to find a violation. It runs
// the product with the same faults: no check may find one.
func runSelftest(ctx context.Context, o options) error {
	if o.mutant != "" && !slices.ContainsFunc(selftests(),
		func(m mutant) bool { return m.name == o.mutant }) {
		return fmt.Errorf("--mutant: there is no %q", o.mutant)
	}
	var faults error
	for _, m := range selftests() {
		if o.mutant != "" && o.mutant != m.name {
			continue
		}
		broken, took, err := m.run(ctx, o.folder, m.name)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		well, _, err := m.run(ctx, o.folder, "")
		if err != nil {
			return fmt.Errorf("%s, unbroken: %w", m.name, err)
		}
		switch {
		case len(broken) == 0:
			faults = errors.Join(faults,
				fmt.Errorf("%s (%s): %w by %s", m.name, m.breaks, errUncaught,
					strings.Join(m.faults, ", ")))
		case took > caughtWithin:
			faults = errors.Join(faults,
				fmt.Errorf("%s (%s): caught after %v only", m.name, m.breaks, took))
		case len(well) > 0:
			faults = errors.Join(faults,
				fmt.Errorf("%s: the unbroken product is blamed, too: %s", m.name,
					strings.Join(well, ", ")))
		default:
			fmt.Printf("%s (%s): caught by %s, %v with everything; the unbroken product is not\n",
				m.name, m.breaks, strings.Join(broken, ", "), took)
		}
	}
	return faults
}

// run runs a mutant, or the product if build is empty, with the mutant's faults. It returns the
// checks that found violations: of a mutant only those of m.checks.
func (m *mutant) run(ctx context.Context, folder, build string) (broken []string,
	took time.Duration, err error,
) {
	began := time.Now()
	err = runOnce(ctx, options{
		seed: m.seed, nodes: 3, duration: selftestTime,
		folder: filepath.Join(folder, m.name+"-"+build), mutant: build, kinds: m.faults,
	})
	var v *brokenPromises
	if errors.As(err, &v) {
		err = nil
		for _, found := range v.findings.Violations {
			if (slices.Contains(m.checks, found.Check) || build == "") &&
				!slices.Contains(broken, found.Check) {
				broken = append(broken, found.Check)
			}
		}
	}
	return broken, time.Since(began).Round(time.Second), err
}
