package main

import (
	"bufio"
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// pairs.txt names the runs that showed a failure when it was found. A run that still shows one that is known and not mended says
// open and the checks that find it; nothing else may fail.
//
//go:embed pairs.txt
var pairsFile string

// finding is what a run showed.
type finding struct {
	open   bool
	checks []string // that find it, sorted
	name   string
}

// recorded reads pairs.txt.
func recorded() (map[pair]finding, error) {
	known := make(map[pair]finding)
	lines := bufio.NewScanner(strings.NewReader(pairsFile))
	for number := 1; lines.Scan(); number++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Split(strings.TrimSpace(text), "|")
		if fields[0] == "" {
			continue
		}
		var p pair
		if len(fields) != 4 {
			return nil, fmt.Errorf("pairs.txt, line %d: want seed and schedule | mended or open | checks | name", number)
		}
		if _, err := fmt.Sscanf(fields[0], "%d %d", &p.seed, &p.schedule); err != nil {
			return nil, fmt.Errorf("pairs.txt, line %d: seed and schedule: %w", number, err)
		}
		state := strings.TrimSpace(fields[1])
		if state != "open" && state != "mended" {
			return nil, fmt.Errorf("pairs.txt, line %d: %q is neither open nor mended", number, state)
		}
		checks := strings.Split(strings.TrimSpace(fields[2]), ", ")
		slices.Sort(checks)
		known[p] = finding{state == "open", checks, strings.TrimSpace(fields[3])}
	}
	return known, nil
}

func sorted(known map[pair]finding) []pair {
	return slices.SortedFunc(maps.Keys(known), func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.seed, b.seed), cmp.Compare(a.schedule, b.schedule))
	})
}
