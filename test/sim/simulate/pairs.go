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

// pairs.txt lists runs, each with the failure that it showed in the build in which it was found. A
// line is open while its failure is known and not mended. Its run must then fail in exactly the
// checks that the line names.
//
//go:embed pairs.txt
var pairsFile string

// finding is the failure that pairs.txt lists for a run.
type finding struct {
	open   bool     // it is not mended
	checks []string // the checks that find it, sorted
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
			return nil, fmt.Errorf(
				"pairs.txt, line %d: want seed and schedule | mended or open | checks | name",
				number)
		}
		if _, err := fmt.Sscanf(fields[0], "%d %d", &p.seed, &p.schedule); err != nil {
			return nil, fmt.Errorf("pairs.txt, line %d: seed and schedule: %w", number, err)
		}
		state := strings.TrimSpace(fields[1])
		if state != "open" && state != "mended" {
			return nil, fmt.Errorf("pairs.txt, line %d: %q is neither open nor mended", number,
				state)
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
