package main

import (
	"fmt"
	"strings"
)

// matrix returns the results as a table in Markdown. The cell of a failure has the longest time
// that an answered request took, and the number of failed requests. A dash stands for what was not
// measured.
func matrix(results []*result) string {
	var b strings.Builder
	b.WriteString("| broker | conformance | leader killed | leader stopped | broker restarted | a client's watches end | SET/s at 1, 64, 256 | plugin, attacks, libraries |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		version := r.version
		if version == "" {
			version = r.name
		}
		if r.skipped {
			fmt.Fprintf(&b, "| %s | left out: its release could not be had here | | | | | | |\n",
				version)
			continue
		}
		cells := []string{
			version, orDash(r.conformance), r.kill.String(), r.stop.String(),
			r.restart.String(),
		}
		cells = append(cells, orDash(r.watchEnds), orDash(strings.Join(r.rates, ", ")),
			orDash(r.attacks))
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

// sessions returns what `holdfast broker check` has found as a table in Markdown, a row for each
// check.
func sessions(results []*result) string {
	var b strings.Builder
	var checks []string
	found := make(map[string][]string)
	header := "| "
	for _, r := range results {
		if len(r.session) == 0 {
			continue
		}
		header += "| " + r.name + " "
		for _, f := range r.session {
			if found[f.Check] == nil {
				checks = append(checks, f.Check)
			}
			text := f.Found
			if !f.OK {
				text = "**" + text + "**"
			}
			found[f.Check] = append(found[f.Check], text)
		}
	}
	if len(checks) == 0 {
		return ""
	}
	b.WriteString(header + "|\n|" + strings.Repeat("---|", strings.Count(header, "|")) + "\n")
	for _, check := range checks {
		fmt.Fprintf(&b, "| %s | %s |\n", check, strings.Join(found[check], " | "))
	}
	return b.String()
}

func orDash(text string) string {
	if text == "" {
		return "–"
	}
	return text
}
