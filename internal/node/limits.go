package node

import (
	"fmt"

	"holdfast/cluster"
	"holdfast/fsm"
)

// nearLimit is the share of a limit from which an operator is told, in percent.
const nearLimit = 80

// limitNotes returns which limits are nearly reached, and whether this machine has too little memory for what may be stored. memory is what
// the process may use, in bytes.
func limitNotes(limits *fsm.Limits, state *fsm.Status, memory int64) (notes []string) {
	for _, limit := range cluster.LimitsOf(limits, state) {
		if limit.Bound > 0 && limit.Used >= limit.Bound/100*nearLimit && limit.Used > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d of %d are used; at the limit what would grow is refused", limit.Name, limit.Used, limit.Bound))
		}
	}
	switch {
	case limits.TotalBytes == 0:
	case limits.TotalBytes > memory/2:
		notes = append(notes, fmt.Sprintf("limits.totalBytes is %d, and this node may use %d bytes of memory: it would be killed before the store is full. "+
			"Set limits.totalBytes to auto, or to a quarter of the memory of the smallest member, on any node", limits.TotalBytes, memory))
	}
	return notes
}
