package node

import (
	"fmt"
	"time"

	"holdfast/cluster"
	"holdfast/fsm"
)

// nearLimit is the share of a limit from which an operator is told, in percent.
const nearLimit = 80

// limitNotes returns which limits are nearly reached, and whether this machine has too little
// memory for what may be stored. memory is what the process may use, in bytes.
func limitNotes(limits *fsm.Limits, state *fsm.Status, memory int64) (notes []string) {
	for _, limit := range cluster.LimitsOf(limits, state) {
		if limit.Bound > 0 && limit.Used >= limit.Bound/100*nearLimit && limit.Used > 0 {
			note := fmt.Sprintf("%s: %d of %d are used; at the limit what would grow is refused",
				limit.Name, limit.Used, limit.Bound)
			if limit.Name == "limits.keys" || limit.Name == "limits.totalBytes" {
				note += "; `holdfast keys owners` says by whom"
			}
			notes = append(notes, note)
		}
	}
	switch {
	case limits.TotalBytes == 0:
	case limits.TotalBytes > memory/2:
		notes = append(notes, fmt.Sprintf(
			"limits.totalBytes is %d, and this node may use %d bytes of memory: it would be killed before the store is full. "+
				"Set limits.totalBytes to auto, or to a quarter of the memory of the smallest member, on any node", limits.TotalBytes, memory))
	}
	return notes
}

// versionsAhead is how far versions may be ahead of the cluster's clock without a note. A client's
// timestamp may be ahead by a minute, and raises them.
const versionsAhead = 2 * time.Minute

// aheadNote returns a note if the newest version is far ahead of the cluster's clock. Both are in
// milliseconds since the Unix epoch; 0 is unknown.
func aheadNote(newest, clock int64) string {
	ahead := time.Duration(newest-clock) * time.Millisecond
	if clock == 0 || ahead <= versionsAhead {
		return ""
	}
	return fmt.Sprintf("versions are %v ahead of the clock, as after clocks of a majority were wrong: they still grow, and nothing is lost, "+
		"but they do not tell when a value was set until the clock has come that far",
		ahead.Round(time.Second))
}
