package history

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// Write writes what each client did and saw, for people. Nobody may add to the history meanwhile.
// It ignores errors of w: the caller has to get them from w.
func (h *History) Write(w io.Writer) {
	for _, o := range h.Ops {
		fmt.Fprintln(w, o)
		for _, c := range o.Sendings {
			fmt.Fprintf(w, "    sent at %.6f to %v\n", c.At.Seconds(), c.Receivers)
		}
		for _, again := range o.Again {
			fmt.Fprintf(w, "    answered again at %.6f: %q %s\n", again.At.Seconds(), again.Payload,
				again.Version)
		}
	}
	for _, client := range slices.Sorted(maps.Keys(h.Notifications)) {
		fmt.Fprintf(w, "\n%s was told:\n", client)
		for _, n := range h.Notifications[client] {
			fmt.Fprintf(w, "    %.6f %s %s deleted=%v %s\n", n.At.Seconds(), n.Key, n.Value,
				n.Deleted, n.Version)
		}
	}
	fmt.Fprintf(w, "\nsessions that began anew: %v\n", h.Gaps)
}
