package main

import (
	"fmt"
	"strings"
)

// matrix returns the results as a table in Markdown. The cell of a failure has the longest time that an answered request took, and the number of failed
// requests. A dash stands for what was not measured.
func matrix(results []*result) string {
	var b strings.Builder
	b.WriteString("| broker | conformance | leader killed | leader stopped | broker restarted | same, `ingest: leader` | a client's watches end | SET/s at 1, 64, 256 | plugin, attacks, libraries |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		version := r.version
		if version == "" {
			version = r.name
		}
		if r.skipped {
			fmt.Fprintf(&b, "| %s | left out: its release could not be had here | | | | | | | |\n", version)
			continue
		}
		everywhere, leader := r.modes[ingests[0]], r.modes[ingests[1]]
		cells := []string{version, orDash(r.conformance)}
		if everywhere != nil {
			cells = append(cells, everywhere.kill.String(), everywhere.stop.String(), everywhere.restart.String())
		} else {
			cells = append(cells, "–", "–", "–")
		}
		if leader != nil {
			cells = append(cells, fmt.Sprintf("%s; %s; %s", leader.kill, leader.stop, leader.restart))
		} else {
			cells = append(cells, "–")
		}
		cells = append(cells, orDash(r.watchEnds), orDash(strings.Join(r.rates, ", ")), orDash(r.attacks))
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

func orDash(text string) string {
	if text == "" {
		return "–"
	}
	return text
}
